// NaN and infinite numbers are found, wherever they stand.
#include "runner/adapter_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire::runner {
namespace {

float value_of(DType dtype, uint32_t code) {
  return dtype == DType::kF16 ? half_to_float(static_cast<uint16_t>(code))
                              : bfloat16_to_float(static_cast<uint16_t>(code));
}

TEST(AdapterNumbers, EveryCodeOfSixteenBitsIsJudgedAsItsValueIs) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (uint32_t code = 0; code < 65536; ++code) {
      uint16_t codes[7] = {};
      codes[code % 7] = static_cast<uint16_t>(code);
      ASSERT_EQ(all_finite(dtype, codes, 7), std::isfinite(value_of(dtype, code))) << code;
    }
  }
}

TEST(AdapterNumbers, OneThatIsNoneIsFoundInEveryPlaceBesideAnything) {
  constexpr float kWrong[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
  constexpr float kLargest[] = {std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest(), 1.0f, -0.0f};
  for (size_t count = 1; count < 10; ++count) {
    for (size_t place = 0; place < count; ++place) {
      std::vector<float> floats(count);
      for (size_t i = 0; i < count; ++i) floats[i] = kLargest[i % 4];
      EXPECT_TRUE(all_finite(DType::kF32, floats.data(), static_cast<int64_t>(count)));
      for (const float wrong : kWrong) {
        floats[place] = wrong;
        EXPECT_FALSE(all_finite(DType::kF32, floats.data(), static_cast<int64_t>(count))) << count << " " << place;
      }
      std::vector<uint16_t> halves(count, 0xfbff);  // the lowest number
      EXPECT_TRUE(all_finite(DType::kF16, halves.data(), static_cast<int64_t>(count)));
      halves[place] = 0x7c00;
      EXPECT_FALSE(all_finite(DType::kF16, halves.data(), static_cast<int64_t>(count)));
    }
  }
}

}  // namespace
}  // namespace quire::runner
