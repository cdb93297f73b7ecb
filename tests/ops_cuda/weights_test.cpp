// Weights as they are stored, on a card: rows read back, and products of a few rows.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cuda/kernels.h"
#include "ops/quantise.h"
#include "tests/ops/ops_test_support.h"
#include "tests/ops_cuda/on_card.h"

namespace quire::ops::cuda {
namespace {

using ops::testing::largest_difference;
using ops::testing::Random;
using ops::testing::same_bits;
using ops::testing::StoredWeights;
using testing::OnCard;

constexpr float kUntouched = 12345.0f;

std::vector<DType> formats() {
  return {DType::kF32,      DType::kF16,     DType::kBF16,    DType::kF8E4M3, DType::kF8E4M3_128, DType::kF8E4M3_32,
          DType::kQ4_0,     DType::kQ4_1,    DType::kQ5_0,    DType::kQ5_1,   DType::kQ8_0,       DType::kQ2_K,
          DType::kQ3_K,     DType::kQ4_K,    DType::kQ5_K,    DType::kQ6_K,   DType::kIQ4_NL,     DType::kIQ4_XS,
          DType::kMXFP4,    DType::kNVFP4,   DType::kU4_32,   DType::kU4_64,  DType::kU4_128,     DType::kU4_32_F32,
          DType::kI8_32,    DType::kI8_128,  DType::kI8_32_Z, DType::kNF4,    DType::kFP4,        DType::kU4_64_HZ,
          DType::kU4_32_FZ, DType::kI8_64_HZ};
}

// Rows one after the other as pack() is given them.
std::vector<uint8_t> stored_bytes(DType dtype, int64_t rows, int64_t columns, Random& random) {
  const StoredWeights stored(dtype, rows, columns, random);
  const auto* bytes = static_cast<const uint8_t*>(stored.view().data);
  return {bytes, bytes + rows * quantised_row_bytes(dtype, columns)};
}

std::vector<float> values_of(DType dtype, const std::vector<uint8_t>& bytes, int64_t rows, int64_t columns) {
  return ops::testing::values_of({bytes.data(), dtype, Shape{rows, columns}});
}

// A weight on the card as a backend keeps it; what rows are padded with is NaN in formats that have one.
class CardWeight {
 public:
  CardWeight(DType dtype, const std::vector<uint8_t>& bytes, int64_t rows, int64_t columns, int64_t padding = 0)
      : row_bytes_((quantised_row_bytes(dtype, columns) + 15) / 16 * 16 + padding),
        memory_(padded(bytes, rows, quantised_row_bytes(dtype, columns))),
        matrix_{memory_.data(), dtype, rows, columns, row_bytes_} {}
  CardWeight(DType dtype, int64_t rows, int64_t columns, Random& random)
      : CardWeight(dtype, stored_bytes(dtype, rows, columns, random), rows, columns) {}
  const StoredMatrix& matrix() const { return matrix_; }

 private:
  std::vector<uint8_t> padded(const std::vector<uint8_t>& bytes, int64_t rows, int64_t used) const {
    std::vector<uint8_t> all(static_cast<size_t>(rows * row_bytes_), 0xff);
    for (int64_t row = 0; row < rows; ++row)
      std::memcpy(all.data() + row * row_bytes_, bytes.data() + row * used, static_cast<size_t>(used));
    return all;
  }
  int64_t row_bytes_;
  OnCard<uint8_t> memory_;
  StoredMatrix matrix_;
};

class StoredTest : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  int64_t block() const { return info(dtype()).block_values; }
  // Less than a step of a warp, and more; whole blocks, and what is no multiple of anything.
  std::vector<int64_t> widths() const {
    if (block() == 1) return {1, 7, 33, 255, 577, 1537};
    if (block() == 32) return {32, 96, 576, 1056, 2080};
    if (block() == 256) return {256, 768, 2304};
    return {block(), 3 * block(), 9 * block(), 17 * block()};
  }
  std::vector<float> product(const CardWeight& weight, const std::vector<float>& x, int64_t num_rows,
                             const std::vector<float>& bias, int64_t x_gap = 0) const {
    const StoredMatrix& matrix = weight.matrix();
    std::vector<float> spaced;
    for (int64_t m = 0; m < num_rows; ++m) {
      spaced.insert(spaced.end(), x.begin() + m * matrix.columns, x.begin() + (m + 1) * matrix.columns);
      spaced.insert(spaced.end(), static_cast<size_t>(x_gap), std::numeric_limits<float>::quiet_NaN());
    }
    const int64_t out_stride = matrix.rows + 3;
    const OnCard<float> card_x(spaced);
    const OnCard<float> card_bias(bias);
    const OnCard<float> out(static_cast<size_t>(num_rows * out_stride), kUntouched);
    multiply_few_rows({.weight = matrix,
                       .x = card_x.data(),
                       .x_stride = matrix.columns + x_gap,
                       .num_rows = num_rows,
                       .bias = bias.empty() ? nullptr : card_bias.data(),
                       .out = out.data(),
                       .out_stride = out_stride},
                      nullptr);
    const std::vector<float> got = out.read();
    std::vector<float> dense;
    for (int64_t m = 0; m < num_rows; ++m) {
      const float* from = got.data() + m * out_stride;
      dense.insert(dense.end(), from, from + matrix.rows);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(from[matrix.rows + i], kUntouched);
    }
    return dense;
  }
};

std::vector<float> exact_product(const std::vector<float>& values, int64_t rows, int64_t columns,
                                 const std::vector<float>& x, int64_t num_rows, const std::vector<float>& bias) {
  std::vector<float> out;
  for (int64_t m = 0; m < num_rows; ++m) {
    for (int64_t n = 0; n < rows; ++n) {
      double sum = bias.empty() ? 0.0 : bias[static_cast<size_t>(n)];
      for (int64_t k = 0; k < columns; ++k)
        sum += double{x[static_cast<size_t>(m * columns + k)]} * values[static_cast<size_t>(n * columns + k)];
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

void expect_same_values(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_TRUE(same_bits(&got[i], &expected[i], 1)) << i << ": " << got[i] << ", not " << expected[i];
    }
  }
}

TEST_P(StoredTest, ExpandsRowsToTheBit) {
  Random random(11);
  EXPECT_TRUE(has_decoder(dtype()));
  for (const int64_t columns : widths()) {
    const std::vector<uint8_t> bytes = stored_bytes(dtype(), 5, columns, random);
    const CardWeight weight(dtype(), bytes, 5, columns, /*padding=*/16);
    const OnCard<float> out(static_cast<size_t>(3 * columns), kUntouched);
    expand_rows(weight.matrix(), 2, 3, out.data(), nullptr);
    const std::vector<float> values = values_of(dtype(), bytes, 5, columns);
    expect_same_values(out.read(), {values.begin() + 2 * columns, values.end()});
  }
}

// Scales that are denormal, infinite or no numbers, and every code.
TEST_P(StoredTest, ReadsBlocksOfRandomBitsToTheBit) {
  Random random(12);
  const int64_t columns = block() == 1 ? 1 << 16 : 512 * block();
  std::vector<uint8_t> bytes(static_cast<size_t>(quantised_row_bytes(dtype(), columns)));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.between(0, 255));
  if (dtype() == DType::kF8E4M3) std::memcpy(bytes.data() + columns, &kUntouched, sizeof(float));
  const std::vector<float> expected = values_of(dtype(), bytes, 1, columns);
  const CardWeight weight(dtype(), bytes, 1, columns);
  const OnCard<float> out(static_cast<size_t>(columns), 0.0f);
  expand_rows(weight.matrix(), 0, 1, out.data(), nullptr);
  expect_same_values(out.read(), expected);
}

TEST_P(StoredTest, EmbedsRowsThatArePackedAtAnAlignmentOfTwo) {
  if (has_row_scales(dtype())) GTEST_SKIP() << "no table has it";
  Random random(13);
  for (const int64_t columns : widths()) {
    std::vector<uint8_t> bytes = stored_bytes(dtype(), 9, columns, random);
    const std::vector<float> values = values_of(dtype(), bytes, 9, columns);
    bytes.insert(bytes.begin(), 2, uint8_t{0});
    const OnCard<uint8_t> table(bytes);
    const std::vector<TokenId> ids = {8, 0, 3, 3};
    const OnCard<TokenId> card_ids(ids);
    const OnCard<float> out(ids.size() * static_cast<size_t>(columns), kUntouched);
    embed({.ids = {ids.data(), card_ids.data()},
           .num_tokens = 4,
           .table = {table.data() + 2, dtype(), Shape{9, columns}},
           .out = out.data()},
          nullptr);
    std::vector<float> expected;
    for (const TokenId id : ids)
      expected.insert(expected.end(), values.begin() + id * columns, values.begin() + (id + 1) * columns);
    expect_same_values(out.read(), expected);
  }
}

TEST_P(StoredTest, MultipliesFewRowsOverShapes) {
  Random random(14);
  for (const int64_t columns : widths()) {
    for (const int64_t rows : {1, 5, 33, 70}) {
      const std::vector<uint8_t> bytes = stored_bytes(dtype(), rows, columns, random);
      const CardWeight weight(dtype(), bytes, rows, columns, rows % 2 * 16);
      const std::vector<float> values = values_of(dtype(), bytes, rows, columns);
      for (int64_t m = rows == 5 ? 1 : 4; m <= (rows == 5 ? 9 : 4); ++m) {
        const std::vector<float> x = random.normals(m * columns);
        const std::vector<float> bias = m % 2 == 0 ? random.normals(rows) : std::vector<float>();
        EXPECT_LT(
            largest_difference(product(weight, x, m, bias, m % 3), exact_product(values, rows, columns, x, m, bias)),
            1e-5)
            << columns << " columns, " << rows << " rows, " << m << " of x";
      }
    }
  }
}

// More columns than are staged together, and enough rows for a warp to take several.
TEST_P(StoredTest, MultipliesWideRowsAndManyOfThem) {
  Random random(15);
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{3, 12288}, {4300, 256}}) {
    const std::vector<uint8_t> bytes = stored_bytes(dtype(), rows, columns, random);
    const CardWeight weight(dtype(), bytes, rows, columns);
    const std::vector<float> values = values_of(dtype(), bytes, rows, columns);
    for (const int64_t m : rows == 3 ? std::vector<int64_t>{1, 2, 4, 8} : std::vector<int64_t>{1, 3}) {
      const std::vector<float> x = random.normals(m * columns);
      EXPECT_LT(largest_difference(product(weight, x, m, {}), exact_product(values, rows, columns, x, m, {})), 1e-5);
    }
  }
}

TEST_P(StoredTest, GivesARowTheSameBitsAloneAndAmongOthers) {
  Random random(16);
  const int64_t columns = block() == 1 ? 1100 : 2304;
  const CardWeight weight(dtype(), 21, columns, random);
  const std::vector<float> x = random.normals(19 * columns);
  const std::vector<float> bias = random.normals(21);
  const std::vector<float> all = product(weight, x, 19, bias);
  for (int64_t first = 0, count = 1; first < 19; first += count, ++count) {
    count = std::min<int64_t>(count, 19 - first);
    const std::vector<float> some_x(x.begin() + first * columns, x.begin() + (first + count) * columns);
    const std::vector<float> some = product(weight, some_x, count, bias);
    EXPECT_TRUE(same_bits(some.data(), all.data() + first * 21, count * 21)) << first;
  }
}

// A product with one 1 is that value of the weight, and nothing of others.
TEST_P(StoredTest, ReadsValuesBackThroughUnitVectorsExactly) {
  Random random(17);
  const int64_t columns = block() == 1 ? 600 : 1280;
  const std::vector<uint8_t> bytes = stored_bytes(dtype(), 6, columns, random);
  const CardWeight weight(dtype(), bytes, 6, columns);
  const std::vector<float> values = values_of(dtype(), bytes, 6, columns);
  for (int64_t k = 0; k < columns; k += 8) {
    std::vector<float> x(static_cast<size_t>(8 * columns));
    for (int64_t m = 0; m < 8 && k + m < columns; ++m) x[static_cast<size_t>(m * columns + k + m)] = 1.0f;
    const std::vector<float> got = product(weight, x, 8, {});
    for (int64_t m = 0; m < 8 && k + m < columns; ++m) {
      for (int64_t n = 0; n < 6; ++n)
        ASSERT_EQ(got[static_cast<size_t>(m * 6 + n)], values[static_cast<size_t>(n * columns + k + m)]) << k + m;
    }
  }
}

TEST_P(StoredTest, NanSpoilsItsRowAlone) {
  Random random(18);
  const int64_t columns = block() == 1 ? 300 : 512;
  const CardWeight weight(dtype(), 9, columns, random);
  std::vector<float> x = random.normals(3 * columns);
  std::fill_n(x.begin(), columns, 1e-42f);
  const std::vector<float> before = product(weight, x, 3, {});
  for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(before[i], 0.0f, 1e-30f);
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[static_cast<size_t>(columns + 77)] = wrong;
    const std::vector<float> after = product(weight, x, 3, {});
    EXPECT_TRUE(same_bits(after.data(), before.data(), 9));
    EXPECT_TRUE(same_bits(after.data() + 18, before.data() + 18, 9));
    for (size_t i = 9; i < 18; ++i) EXPECT_FALSE(std::isfinite(after[i]));
  }
}

class Group {
 public:
  Group(DType dtype, int count, int64_t rows, int64_t columns, Random& random) {
    std::vector<const uint8_t*> pointers;
    for (int i = 0; i < count; ++i) {
      weights.push_back(std::make_unique<CardWeight>(dtype, rows, columns, random));
      pointers.push_back(weights.back()->matrix().data);
    }
    on_card = std::make_unique<OnCard<const uint8_t*>>(pointers);
  }
  std::vector<std::unique_ptr<CardWeight>> weights;
  std::unique_ptr<OnCard<const uint8_t*>> on_card;
};

TEST_P(StoredTest, AGroupedProductIsThatOfEachGroupToTheBit) {
  Random random(19);
  const int64_t columns = 512;
  const int64_t rows = 37;
  const Group group(dtype(), 5, rows, columns, random);
  for (const std::vector<int32_t>& offsets :
       std::vector<std::vector<int32_t>>{{0, 0, 1, 1, 1, 1}, {0, 1, 1, 4, 4, 5}, {0, 1, 1, 12, 30, 31}}) {
    const int64_t num_rows = offsets.back();
    const std::vector<float> x = random.normals(num_rows * columns);
    const std::vector<float> bias = random.normals(5 * (rows + 1));
    const OnCard<float> card_x(x);
    const OnCard<float> card_bias(bias);
    const OnCard<int32_t> card_offsets(offsets);
    const OnCard<float> out(static_cast<size_t>(num_rows * rows), kUntouched);
    multiply_grouped_rows({.shape = group.weights[0]->matrix(),
                           .weights = group.on_card->data(),
                           .num_groups = 5,
                           .offsets = card_offsets.data(),
                           .num_rows = num_rows,
                           .x = card_x.data(),
                           .x_stride = columns,
                           .bias = card_bias.data(),
                           .bias_stride = rows + 1,
                           .out = out.data(),
                           .out_stride = rows},
                          nullptr);
    const std::vector<float> got = out.read();
    for (size_t g = 0; g < 5; ++g) {
      const int64_t first = offsets[g];
      const int64_t count = offsets[g + 1] - first;
      if (count == 0) continue;
      const std::vector<float> own_x(x.begin() + first * columns, x.begin() + (first + count) * columns);
      const auto own_bias = bias.begin() + static_cast<int64_t>(g) * (rows + 1);
      const std::vector<float> expected = product(*group.weights[g], own_x, count, {own_bias, own_bias + rows});
      EXPECT_TRUE(same_bits(got.data() + first * rows, expected.data(), count * rows)) << g;
    }
  }
}

TEST_P(StoredTest, AGroupedProductReadsAndWritesHeadsBesideEachOther) {
  Random random(20);
  const int64_t heads = 3;
  const int64_t columns = 256;
  const int64_t rows = 20;
  const Group group(dtype(), heads, rows, columns, random);
  for (const int64_t tokens : {1, 17}) {
    const std::vector<float> x = random.normals(tokens * heads * columns);
    const OnCard<float> card_x(x);
    const OnCard<float> out(static_cast<size_t>(tokens * heads * rows), kUntouched);
    multiply_grouped_rows({.shape = group.weights[0]->matrix(),
                           .weights = group.on_card->data(),
                           .num_groups = heads,
                           .num_rows = tokens * heads,
                           .x = card_x.data(),
                           .x_stride = heads * columns,
                           .x_group_stride = columns,
                           .out = out.data(),
                           .out_stride = heads * rows,
                           .out_group_stride = rows},
                          nullptr);
    const std::vector<float> got = out.read();
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t t = 0; t < tokens; ++t) {
        const auto from = x.begin() + (t * heads + head) * columns;
        const std::vector<float> expected =
            product(*group.weights[static_cast<size_t>(head)], {from, from + columns}, 1, {});
        ASSERT_TRUE(same_bits(got.data() + (t * heads + head) * rows, expected.data(), rows));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredTest, ::testing::ValuesIn(formats()),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(HasDecoderTest, NotForFormatsOfGridsAndNotForIntegers) {
  for (const DType dtype : {DType::kI32, DType::kI8, DType::kU8, DType::kF8E5M2, DType::kIQ2_XXS, DType::kIQ1_M,
                            DType::kTQ2_0, DType::kQ8_K}) {
    EXPECT_FALSE(has_decoder(dtype)) << name(dtype);
  }
}

}  // namespace
}  // namespace quire::ops::cuda
