// Weights of groups of rows in a card's memory, and what their products are.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "ops/cuda/kernels.h"
#include "ops/quantise.h"
#include "tests/ops/ops_test_support.h"
#include "tests/ops_cuda/on_card.h"

namespace quire::ops::cuda::testing {

// [rows, columns] of each group; NaN between rows of numbers.
class GroupsOnCard {
 public:
  GroupsOnCard(DType dtype, int64_t num_groups, int64_t rows, int64_t columns, ops::testing::Random& random) {
    const int64_t used = quantised_row_bytes(dtype, columns);
    const int64_t stride = (used + 15) / 16 * 16 + 16;
    shape_ = {nullptr, dtype, rows, columns, stride};
    std::vector<const uint8_t*> addresses;
    for (int64_t g = 0; g < num_groups; ++g) {
      const ops::testing::StoredWeights stored(dtype, rows, columns, random);
      values_.push_back(ops::testing::values_of(stored.view()));
      std::vector<uint8_t> bytes(static_cast<size_t>(rows * stride), 0xff);
      for (int64_t n = 0; n < rows; ++n) {
        std::memcpy(bytes.data() + n * stride, static_cast<const uint8_t*>(stored.view().data) + n * used,
                    static_cast<size_t>(used));
      }
      memory_.push_back(std::make_unique<OnCard<uint8_t>>(bytes));
      addresses.push_back(memory_.back()->data());
    }
    addresses_ = std::make_unique<OnCard<const uint8_t*>>(addresses);
  }

  const StoredMatrix& shape() const { return shape_; }
  const uint8_t* const* addresses() const { return addresses_->data(); }

  // What out[row][n] is of a row of the group, and the sum of its terms' magnitudes.
  struct Sum {
    double value;
    double magnitude;
  };
  Sum sum(int64_t group, int64_t n, const float* x, double bias) const {
    const float* weight = values_[static_cast<size_t>(group)].data() + n * shape_.columns;
    Sum sum{bias, std::fabs(bias)};
    for (int64_t k = 0; k < shape_.columns; ++k) {
      const double each = double{x[k]} * weight[k];
      sum.value += each;
      sum.magnitude += std::fabs(each);
    }
    return sum;
  }

 private:
  StoredMatrix shape_;
  std::vector<std::vector<float>> values_;
  std::vector<std::unique_ptr<OnCard<uint8_t>>> memory_;
  std::unique_ptr<OnCard<const uint8_t*>> addresses_;
};

// A product of many rows and what came out of it, one number of which lies between rows.
struct GroupedProduct {
  static constexpr float kUntouched = 12345.0f;
  static constexpr int64_t kPastOut = 2;  // between rows of what comes out

  const GroupsOnCard& groups;
  std::vector<int32_t> offsets;
  std::vector<float> x;  // rows x_stride apart
  int64_t x_stride;
  std::vector<float> bias;  // [groups, rows + 1], or empty

  int64_t num_rows() const { return offsets.back(); }
  int64_t rows() const { return groups.shape().rows; }

  // multiply(work) is called with all of it on the card; each number may be `most` of its terms' magnitudes and `least`
  // more off.
  template <typename Multiply>
  void expect(double most, double least, const Multiply& multiply) const {
    const OnCard<int32_t> card_offsets(offsets);
    const OnCard<float> card_x(x);
    const OnCard<float> card_bias(bias.empty() ? std::vector<float>(1) : bias);
    const OnCard<float> out(static_cast<size_t>(num_rows() * (rows() + kPastOut)), kUntouched);
    multiply(GroupedRowsWork{.shape = groups.shape(),
                             .weights = groups.addresses(),
                             .num_groups = static_cast<int32_t>(offsets.size() - 1),
                             .offsets = card_offsets.data(),
                             .num_rows = num_rows(),
                             .x = card_x.data(),
                             .x_stride = x_stride,
                             .bias = bias.empty() ? nullptr : card_bias.data(),
                             .bias_stride = rows() + 1,
                             .out = out.data(),
                             .out_stride = rows() + kPastOut});
    const std::vector<float> got = out.read();
    for (int64_t g = 0; g + 1 < std::ssize(offsets); ++g) {
      for (int64_t m = offsets[static_cast<size_t>(g)]; m < offsets[static_cast<size_t>(g) + 1]; ++m) {
        const float* of_row = got.data() + m * (rows() + kPastOut);
        for (int64_t n = 0; n < rows(); ++n) {
          const double added = bias.empty() ? 0.0 : bias[static_cast<size_t>(g * (rows() + 1) + n)];
          const auto [value, magnitude] = groups.sum(g, n, x.data() + m * x_stride, added);
          ASSERT_NEAR(of_row[n], value, most * magnitude + least) << "group " << g << ", row " << m << ", " << n;
        }
        for (int64_t n = rows(); n < rows() + kPastOut; ++n) EXPECT_EQ(of_row[n], kUntouched);
      }
    }
  }
};

}  // namespace quire::ops::cuda::testing
