#include "sampling/random.h"

#include <array>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::sampling {
namespace {

using testing::ElementsAre;

// The known answers that the authors of Philox publish with it.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
              ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
  EXPECT_THAT(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u));
}

TEST(Uniform, DependsOnAllBitsOfSeedAndIndex) {
  std::set<double> values;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
    for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
      values.insert(uniform(seed, index));
    }
  }
  EXPECT_EQ(values.size(), 16u);
  EXPECT_EQ(uniform(5, 7), uniform(5, 7));
}

// Chi-square over 64 cells: 63 degrees of freedom, 99.99% below 113.
double chi_square(uint64_t (*seed_of)(uint64_t), uint64_t (*index_of)(uint64_t)) {
  constexpr int kDraws = 64000;
  std::array<int, 64> cells{};
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = uniform(seed_of(i), index_of(i));
    EXPECT_GE(u, 0.0);
    EXPECT_LT(u, 1.0);
    ++cells.at(static_cast<size_t>(u * 64.0));
  }
  double statistic = 0.0;
  for (int count : cells) statistic += (count - 1000.0) * (count - 1000.0) / 1000.0;
  return statistic;
}

TEST(Uniform, IsUniformOverTheTokensOfOneRequestAndOverRequestsWithSeedsInARow) {
  const auto fixed = [](uint64_t) -> uint64_t { return 1234; };
  const auto counted = [](uint64_t i) -> uint64_t { return i; };
  EXPECT_LT(chi_square(fixed, counted), 113.0);
  EXPECT_LT(chi_square(counted, fixed), 113.0);
  EXPECT_LT(chi_square(counted, counted), 113.0);
}

}  // namespace
}  // namespace quire::sampling
