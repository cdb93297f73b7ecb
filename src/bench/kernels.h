// Every kernel of a backend beside the machine's limits: matrix products from each weight format, attention over each
// format of the KV cache, and the small ones.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "bench/machine_limits.h"
#include "ops/backend.h"

namespace quire::bench {

struct KernelCase {
  std::string name;       // "linear Q4_1 [1536, 576] rows 8"
  double bytes = 0;       // that one call must read and write at least
  double operations = 0;  // multiplications and additions
  // Calls the kernel once. Repeated calls go through copies of what is read, so that it comes from memory and not from
  // a cache, where the working set of a model would not be in one.
  std::function<void()> call;
};

struct KernelTime {
  std::string name;
  double seconds = 0;
  double bytes_per_second = 0;
  double operations_per_second = 0;
};

struct KernelOptions {
  std::string filter;    // a regular expression (PCRE2) found in the name; empty: all
  double seconds = 0.1;  // of repetitions a kernel
};

// Errors: invalid_argument for an expression that is none; what pack() fails with but for formats without kernels.
Result<std::vector<KernelTime>> measure_kernels(ops::Backend& backend, const KernelOptions& options,
                                                const std::function<void(const std::string&)>& report);

boost::json::object kernels_json(const MachineLimits& limits, const std::vector<KernelTime>& times);
std::string kernels_table(const MachineLimits& limits, const std::vector<KernelTime>& times);

}  // namespace quire::bench
