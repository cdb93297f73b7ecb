// What a device with memory of its own can do at most, measured by the kernels that a model would use.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "ops/backend.h"

namespace quire::bench {

struct DeviceLimits {
  double copy_bytes_per_second = 0;    // of floats that are copied elsewhere, what is read and what is written
  double update_bytes_per_second = 0;  // of floats that are read and written back where they were
  double read_bytes_per_second = 0;    // of BF16 weights that one row is multiplied with
  double bf16_flops = 0;               // of a product of BF16 with BF16 of as many rows as the weight has
};

// size: rows and columns of the weights, four of which are to be more than the caches hold. Takes a second, and 12
// bytes for each of size^2 numbers. Errors: resource_exhausted.
Result<DeviceLimits> measure_device(ops::Backend& backend, int64_t size = 8192);

boost::json::object device_limits_json(const DeviceLimits& limits);
std::string device_limits_table(const DeviceLimits& limits);

}  // namespace quire::bench
