#include "ops/cuda/float8.cuh"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "ops/reference/kv_values.h"

namespace quire::ops::cuda {
namespace {

TEST(Float8, PairsOfCodesAreTheHalvesThatTheyAre) {
  for (unsigned pair = 0; pair < 0x10000; ++pair) {
    const unsigned halves = halves_of_float8(pair);
    for (const unsigned place : {0u, 1u}) {
      const float expected =
          reference::code_to_float(DType::kF8E4M3, static_cast<uint16_t>(pair >> (8 * place) & 0xff));
      const float value = place == 0 ? lower_half(halves) : upper_half(halves);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(value)) << pair;
      } else {
        ASSERT_EQ(std::bit_cast<unsigned>(value), std::bit_cast<unsigned>(expected)) << pair;
      }
    }
  }
}

}  // namespace
}  // namespace quire::ops::cuda
