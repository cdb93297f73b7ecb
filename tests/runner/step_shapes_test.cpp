#include "runner/step_shapes.h"

#include <gtest/gtest.h>

namespace quire::runner {
namespace {

TEST(StepShapes, AreFewAndHoldEverySizeUpToTheLargest) {
  const StepShapes shapes(300, 4096, 16, 512);
  EXPECT_EQ(shapes.sizes().front(), 1);
  EXPECT_EQ(shapes.sizes().back(), 300);
  EXPECT_EQ(shapes.sizes().size(), 3u + 32 + 2 + 1);  // 1 2 4, 8 to 256 by 8, 272 and 288, 300
  for (size_t count = 1; count <= 300; ++count) {
    const auto shape = shapes.shape_of(count, 1);
    ASSERT_TRUE(shape.has_value()) << count;
    EXPECT_GE(shape->num_sequences, static_cast<int32_t>(count));
    EXPECT_LT(shape->num_sequences - static_cast<int32_t>(count), count <= 8 ? 4 : count <= 256 ? 8 : 16) << count;
  }
  EXPECT_FALSE(shapes.shape_of(0, 1).has_value());
  EXPECT_FALSE(shapes.shape_of(301, 1).has_value());
  EXPECT_FALSE(StepShapes().shape_of(1, 1).has_value());
}

TEST(StepShapes, HaveContextsOfTwiceTheLengthUpToTheModels) {
  const StepShapes shapes(8, 3000, 16, 512);
  const auto blocks = [&](int64_t context) { return shapes.shape_of(3, context)->num_blocks; };
  EXPECT_EQ(blocks(1), 32);
  EXPECT_EQ(blocks(512), 32);
  EXPECT_EQ(blocks(513), 64);
  EXPECT_EQ(blocks(2048), 128);
  EXPECT_EQ(blocks(2049), 188);  // 3000 / 16, rounded up, is less than 256
  EXPECT_EQ(blocks(3000), 188);
  EXPECT_EQ(StepShapes(4, 100, 48, 512).shape_of(3, 100), (DecodeShape{4, 3}));
}

TEST(StepShapes, OfMixedStepsHaveFewTokensLeftOver) {
  const StepShapes shapes(8, 3000, 16, 500);
  for (int64_t count = 1; count <= 500; ++count) {
    const auto shape = shapes.mixed_shape_of(count);
    ASSERT_TRUE(shape.has_value()) << count;
    EXPECT_GE(shape->num_tokens, count);
    EXPECT_LE(shape->num_tokens, 500);
    // Steps of few tokens stay steps of few: their products have kernels of their own.
    EXPECT_LT(shape->num_tokens - count, count <= 8 ? 4 : count <= 256 ? 16 : StepShapes::kMostLeftOver + 1) << count;
    EXPECT_TRUE(count <= 8 || shape->num_tokens % 16 == 0 || shape->num_tokens == 500) << count;
  }
  EXPECT_FALSE(shapes.mixed_shape_of(0).has_value());
  EXPECT_FALSE(shapes.mixed_shape_of(501).has_value());
  EXPECT_FALSE(StepShapes().mixed_shape_of(1).has_value());
}

}  // namespace
}  // namespace quire::runner
