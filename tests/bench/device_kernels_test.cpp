#include "bench/device_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/cpu/cpu_backend.h"

namespace quire::bench {
namespace {

const DeviceKernelSizes kSmall = {.weights = {{64, 256}},
                                  .rows = {1, 4},
                                  .attention = {{2, 40, 1}, {1, 32, 16}},
                                  .experts = {{3, 16, 256, 9}},
                                  .vocabulary = 500,
                                  .drawn_rows = {3},
                                  .cache_bytes = 1000,
                                  .calls = 2};

TEST(DeviceKernels, AreProductsByEachWayAttentionAndDrawing) {
  auto backend = ops::make_cpu_backend({.threads = 1}).value();
  const auto times = measure_device_kernels({{"own", backend.get()}, {"another", backend.get()}}, {.seconds = 1e-6},
                                            kSmall, [](const std::string&) {});
  ASSERT_TRUE(times.ok()) << times.status().message();
  // 4 formats by 2 ways and 2 numbers of rows, experts in 3 formats, 4 caches by 2 shapes, 5 drawings.
  EXPECT_EQ(times->size(), 16u + 3 + 8 + 5);
  const auto has = [&](const char* name) {
    return std::ranges::any_of(*times, [&](const KernelTime& time) { return time.name == name && time.seconds > 0; });
  };
  EXPECT_TRUE(has("linear Q4_K [64, 256] rows 4, another"));
  EXPECT_TRUE(has("linear F8_E4M3 [64, 256] rows 1, own"));
  EXPECT_TRUE(has("linear INT4_128 [64, 256] rows 1, own"));
  EXPECT_TRUE(has("experts F8_E4M3_128 3 of [16, 256] rows 9"));
  EXPECT_TRUE(has("experts Q4_K 3 of [16, 256] rows 9"));
  EXPECT_TRUE(has("attention decode BF16 2 x 40 tokens, 32/8 heads of 128"));
  EXPECT_TRUE(has("attention prefill I8 1 x 16 of 32 tokens, 32/8 heads of 128"));
  EXPECT_TRUE(has("choose_tokens [3, 500], top_k and top_p"));
  const DeviceLimits limits{1e9, 1e9, 1e9, 1e12};
  EXPECT_EQ(device_kernels_json(limits, *times).size(), times->size());
  EXPECT_NE(device_kernels_table(limits, *times).find("choose_tokens"), std::string::npos);
}

TEST(DeviceKernels, AreThoseThatTheFilterLeaves) {
  auto backend = ops::make_cpu_backend({.threads = 1}).value();
  const auto times = measure_device_kernels({{"own", backend.get()}}, {.filter = "BF16.*rows 4", .seconds = 1e-6},
                                            kSmall, [](const std::string&) {});
  ASSERT_TRUE(times.ok()) << times.status().message();
  EXPECT_EQ(times->size(), 1u);
  EXPECT_FALSE(
      measure_device_kernels({{"own", backend.get()}}, {.filter = "("}, kSmall, [](const std::string&) {}).ok());
}

}  // namespace
}  // namespace quire::bench
