// `quire bench kernels` on a card, here an emulated one: graphs, events and the card's own memory.
#include <gtest/gtest.h>

#include "bench/device_kernels.h"
#include "ops/cuda/cuda_backend.h"

namespace quire::bench {
namespace {

TEST(CardKernels, AreMeasuredByEachWayOfProducts) {
  using ops::ProductKernels;
  const auto backend_of = [](ProductKernels products) {
    return ops::make_cuda_backend({.products = products, .check_pointers = true}).value();
  };
  auto own = backend_of(ProductKernels::kFewRows);
  auto tiles = backend_of(ProductKernels::kDecodedTiles);
  auto library = backend_of(ProductKernels::kLibrary);
  const DeviceKernelSizes sizes = {.weights = {{64, 256}},
                                   .rows = {1, 12},
                                   .attention = {{2, 40, 1}, {1, 32, 16}},
                                   .experts = {{3, 40, 256, 30}},
                                   .vocabulary = 500,
                                   .drawn_rows = {3},
                                   .cache_bytes = 1000,
                                   .calls = 2};
  const auto times = measure_device_kernels({{"own", own.get()}, {"tiles", tiles.get()}, {"cuBLASLt", library.get()}},
                                            {.seconds = 1e-6}, sizes, [](const std::string&) {});
  ASSERT_TRUE(times.ok()) << times.status().message();
  EXPECT_EQ(times->size(), 24u + 3 + 8 + 5);
  const auto limits = measure_device(*own, 64);
  ASSERT_TRUE(limits.ok()) << limits.status().message();
  EXPECT_GT(limits->copy_bytes_per_second, 0);
}

}  // namespace
}  // namespace quire::bench
