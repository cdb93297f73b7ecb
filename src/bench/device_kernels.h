// The kernels of a device with memory of its own, each by the device's clock: products by every way there is, those
// of experts, attention by batch, context and format, and the drawing of tokens.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/device_limits.h"
#include "bench/kernels.h"
#include "ops/backend.h"

namespace quire::bench {

struct DeviceKernelSizes {
  std::vector<std::pair<int64_t, int64_t>> weights = {{4096, 4096}, {14336, 4096}, {4096, 14336}};  // outputs, inputs
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64};
  // Sequences, tokens of each, and of those the queries.
  struct Attention {
    int32_t sequences;
    int32_t context;
    int32_t queries;
  };
  std::vector<Attention> attention = {{1, 1024, 1},  {1, 8192, 1},   {8, 8192, 1},    {32, 1024, 1},  {32, 4096, 1},
                                      {34, 4096, 1}, {256, 1024, 1}, {1, 2048, 2048}, {1, 8192, 2048}};
  // Rows that go through a mixture's experts, as many through each.
  struct Experts {
    int32_t experts;
    int64_t outputs;
    int64_t inputs;
    int64_t rows;
  };
  std::vector<Experts> experts = {{128, 1536, 2048, 2048}, {128, 1536, 2048, 16384}};
  int64_t vocabulary = 128256;
  std::vector<int64_t> drawn_rows = {1, 32, 256};
  int64_t cache_bytes = 256 << 20;  // that no cache of the device holds
  int calls = 10;                   // that are recorded and replayed together where the device records
};

// A backend of the device, and how its products are told apart: "own", "tiles", "cuBLASLt".
struct ProductWay {
  std::string name;
  ops::Backend* backend = nullptr;
};

// ways: not empty; the first is that of all else. Errors: invalid_argument for a filter that is none;
// resource_exhausted.
Result<std::vector<KernelTime>> measure_device_kernels(const std::vector<ProductWay>& ways,
                                                       const KernelOptions& options, const DeviceKernelSizes& sizes,
                                                       const std::function<void(const std::string&)>& report);

boost::json::array device_kernels_json(const DeviceLimits& limits, const std::vector<KernelTime>& times);
std::string device_kernels_table(const DeviceLimits& limits, const std::vector<KernelTime>& times);

}  // namespace quire::bench
