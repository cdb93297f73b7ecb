#include "bench/device_limits.h"

#include <gtest/gtest.h>

#include "ops/cpu/cpu_backend.h"

namespace quire::bench {
namespace {

TEST(DeviceLimits, AreMeasuredByTheKernelsOfTheBackend) {
  auto backend = ops::make_cpu_backend({.threads = 1});
  ASSERT_TRUE(backend.ok()) << backend.status().message();
  const auto limits = measure_device(**backend, 64);
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  EXPECT_GT(limits->copy_bytes_per_second, 0);
  EXPECT_GT(limits->update_bytes_per_second, 0);
  EXPECT_GT(limits->read_bytes_per_second, 0);
  EXPECT_GT(limits->bf16_flops, 0);
  EXPECT_EQ(device_limits_json(*limits).size(), 4u);
}

}  // namespace
}  // namespace quire::bench
