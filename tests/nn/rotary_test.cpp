#include "nn/rotary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "ops/reference/reference_backend.h"
#include "tests/nn/bare_step.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

RopeConfig plain(int dim) {
  RopeConfig rope;
  rope.theta = 10000;
  rope.rotary_dim = dim;
  return rope;
}

TEST(Rotary, PlainFrequenciesFallGeometrically) {
  const std::vector<double> frequencies = rotary_frequencies(plain(8));
  ASSERT_EQ(frequencies.size(), 4u);
  EXPECT_DOUBLE_EQ(frequencies[0], 1.0);
  EXPECT_NEAR(frequencies[1], 0.1, 1e-12);
  EXPECT_NEAR(frequencies[3], 0.001, 1e-12);
}

TEST(Rotary, LinearScalingDividesEveryFrequency) {
  RopeConfig rope = plain(8);
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_DOUBLE_EQ(rotary_frequencies(rope)[i], rotary_frequencies(plain(8))[i] / 4);
  }
}

TEST(Rotary, ProportionalScalingLetsTheFirstPairsTurnAlone) {
  RopeConfig rope = plain(8);
  rope.scaling = RopeScaling::kProportional;
  rope.factor = 2;
  rope.turning_share = 0.5;
  const std::vector<double> frequencies = rotary_frequencies(rope);
  EXPECT_DOUBLE_EQ(frequencies[0], 0.5);
  EXPECT_DOUBLE_EQ(frequencies[1], rotary_frequencies(plain(8))[1] / 2) << "as of a head that turns whole";
  EXPECT_EQ(frequencies[2], 0);
  EXPECT_EQ(frequencies[3], 0);
}

TEST(Rotary, Llama3KeepsShortWavelengthsAndDividesLongOnes) {
  RopeConfig rope = plain(64);
  rope.theta = 500000;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_position = 8192;
  RopeConfig unscaled = rope;
  unscaled.scaling = RopeScaling::kNone;
  const std::vector<double> scaled = rotary_frequencies(rope);
  const std::vector<double> original = rotary_frequencies(unscaled);
  for (size_t i = 0; i < scaled.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / original[i];
    if (wavelength < 8192.0 / 4) {
      EXPECT_DOUBLE_EQ(scaled[i], original[i]);
    } else if (wavelength > 8192.0) {
      EXPECT_DOUBLE_EQ(scaled[i], original[i] / 8);
    } else {
      EXPECT_LT(scaled[i], original[i]);
      EXPECT_GT(scaled[i], original[i] / 8);
    }
  }
}

// As Llama 4 Scout has it: nothing lies between what is kept and what is divided.
TEST(Rotary, Llama3MayHaveOneBoundForShortAndLongWavelengths) {
  RopeConfig rope = plain(64);
  rope.theta = 500000;
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 16;
  rope.low_freq_factor = rope.high_freq_factor = 1;
  rope.original_max_position = 8192;
  EXPECT_TRUE(validate(rope, 64).ok());
  RopeConfig unscaled = rope;
  unscaled.scaling = RopeScaling::kNone;
  const std::vector<double> scaled = rotary_frequencies(rope);
  const std::vector<double> original = rotary_frequencies(unscaled);
  for (size_t i = 0; i < scaled.size(); ++i) {
    const bool is_long = 2 * std::numbers::pi / original[i] > 8192;
    EXPECT_DOUBLE_EQ(scaled[i], original[i] / (is_long ? 16 : 1));
  }
  rope.low_freq_factor = 2;
  EXPECT_FALSE(validate(rope, 64).ok());
}

TEST(Rotary, YarnScalesCosineAndSineByItsAttentionFactor) {
  RopeConfig rope = plain(16);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 4;
  rope.original_max_position = 32;
  EXPECT_NEAR(rotary_attention_factor(rope), 0.1 * std::log(4.0) + 1, 1e-12);
  rope.mscale = 0.707;
  rope.mscale_all_dim = 0.707;
  EXPECT_NEAR(rotary_attention_factor(rope), 1.0, 1e-12);
  rope.attention_factor = 1.25;
  EXPECT_NEAR(rotary_attention_factor(rope), 1.25, 1e-12);
}

TEST(Rotary, LongRopeDividesEachFrequencyByTheFactorOfTheSequencesLength) {
  RopeConfig rope = plain(8);
  rope.scaling = RopeScaling::kLongRope;
  rope.original_max_position = 64;
  rope.factor = 8.0;
  rope.short_factors = {1.0, 1.1, 1.2, 1.3};
  rope.long_factors = {2.0, 3.0, 4.0, 5.0};
  const std::vector<double> original = rotary_frequencies(plain(8));
  for (size_t i = 0; i < original.size(); ++i) {
    EXPECT_DOUBLE_EQ(rotary_frequencies(rope)[i], original[i] / rope.short_factors[i]);
    EXPECT_DOUBLE_EQ(rotary_frequencies(rope, /*long_sequence=*/true)[i], original[i] / rope.long_factors[i]);
  }
  EXPECT_NEAR(rotary_attention_factor(rope), std::sqrt(1 + std::log(8.0) / std::log(64.0)), 1e-12);
  rope.attention_factor = 1.5;
  EXPECT_EQ(rotary_attention_factor(rope), 1.5);

  EXPECT_TRUE(validate(rope, 8).ok());
  rope.long_factors.pop_back();
  EXPECT_NE(validate(rope, 8).message().find("long_factor has 3 numbers, expected 4"), std::string::npos);
}

// Two sequences in one batch: the prompt of one is longer than what was trained, though this step is at its beginning;
// the other outgrows it while it is answered.
TEST(Rotary, LongRopeGoesByThePromptsLengthAndThePosition) {
  RopeConfig rope = plain(2);
  rope.scaling = RopeScaling::kLongRope;
  rope.original_max_position = 4;
  rope.short_factors = {1.0};
  rope.long_factors = {2.0};
  const auto backend = ops::make_reference_backend();
  const MemoryCheckpoint nothing;
  Loader loader(Loader::Mode::kLoad, nothing, *backend);
  const Rotary rotary(loader, rope, 16, {});
  std::vector<float> heads = {1, 0, 1, 0, 1, 0, 1, 0};
  const int32_t positions[] = {0, 1, 3, 4};
  const int32_t offsets[] = {0, 2, 4};
  const int32_t contexts[] = {2, 5};
  const int32_t lengths[] = {5, 4};
  const Batch batch{.num_tokens = 4,
                    .num_sequences = 2,
                    .positions = positions,
                    .query_offsets = offsets,
                    .context_lengths = contexts,
                    .prompt_lengths = lengths};
  rotary(BareStep(*backend, batch), ops::View(heads.data(), 4, 2), 1, 2);
  EXPECT_NEAR(heads[2], std::cos(0.5), 1e-6);
  EXPECT_NEAR(heads[4], std::cos(3.0), 1e-6);
  EXPECT_NEAR(heads[7], std::sin(2.0), 1e-6);
}

// Rows as far as positions have come, those of a later position beside what was there before; behind the last there are
// none to make.
TEST(RotaryTable, RowsAreMadeWhenPositionsComeToThem) {
  const auto backend = ops::make_reference_backend();
  const MemoryCheckpoint nothing;
  Loader loader(Loader::Mode::kLoad, nothing, *backend);
  const RotaryTable table(loader, {1.0, 0.01}, 2.0, 1000);
  EXPECT_EQ(loader.bytes(), 1000 * 4 * 4) << "counted whole";
  for (const int64_t end : {1, 2, 300, 299, 1000, 2000}) {
    const float* rows = table.rows(end);
    for (int64_t position = 0; position < std::min<int64_t>(end, 1000); ++position) {
      const auto angle = static_cast<double>(position);
      ASSERT_NEAR(rows[position * 4], 2 * std::cos(angle), 1e-6) << position << " of " << end;
      ASSERT_NEAR(rows[position * 4 + 3], 2 * std::sin(0.01 * angle), 1e-5) << position << " of " << end;
    }
  }
  Loader planner(Loader::Mode::kPlan, nothing, *backend);
  EXPECT_EQ(RotaryTable(planner, {1.0}, 1.0, 1000).rows(1), nullptr);
  EXPECT_EQ(planner.bytes(), 1000 * 2 * 4);
}

TEST(Rotary, NumbersOutOfRangeAreRefusedByName) {
  RopeConfig rope = plain(16);
  EXPECT_TRUE(validate(rope, 16).ok());
  rope.theta = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(validate(rope, 16).message(), testing::HasSubstr("rope_theta"));
  rope = plain(18);
  EXPECT_FALSE(validate(rope, 16).ok());
  rope = plain(16);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 0.5;
  rope.original_max_position = 32;
  EXPECT_THAT(validate(rope, 16).message(), testing::HasSubstr("factor"));
  rope.factor = 2;
  rope.original_max_position = 0;
  EXPECT_THAT(validate(rope, 16).message(), testing::HasSubstr("original_max_position_embeddings"));
}

}  // namespace
}  // namespace quire::nn
