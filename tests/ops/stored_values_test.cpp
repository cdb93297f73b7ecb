// Blocks of the package `gguf` and their values: tests/data/gguf_quants, made by scripts/make_gguf_quant_data.py.
#include "tensor/stored_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <fstream>
#include <iterator>

#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::kAllWeightFormats;
using testing::kDevices;
using testing::Random;
using testing::same_bits;

struct KnownBlocks {
  std::vector<uint8_t> row;   // all of them, one behind the other
  std::vector<float> values;  // what they mean
};

KnownBlocks known_blocks(DType dtype) {
  std::string stem(name(dtype));
  std::transform(stem.begin(), stem.end(), stem.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file(std::string(QUIRE_TEST_DATA "/gguf_quants/") + stem + ".bin", std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto block_bytes = static_cast<size_t>(info(dtype).block_bytes);
  const auto block_values = static_cast<size_t>(info(dtype).block_values);
  const size_t record = block_bytes + block_values * sizeof(float);
  KnownBlocks known;
  for (size_t at = 0; at + record <= bytes.size(); at += record) {
    const char* block = bytes.data() + at;
    known.row.insert(known.row.end(), block, block + block_bytes);
    const size_t first = known.values.size();
    known.values.resize(first + block_values);
    std::memcpy(known.values.data() + first, block + block_bytes, block_values * sizeof(float));
  }
  return known;
}

// Any NaN is as good as another.
bool same_value(float a, float b) {
  return std::isnan(b) ? std::isnan(a) : same_bits(&a, &b, 1);
}

std::vector<DType> formats_of_gguf() {
  std::vector<DType> formats = kAllWeightFormats;
  std::erase_if(formats, [](DType dtype) { return dtype == DType::kF32 || coded_block(dtype).head_bytes > 0; });
  return formats;
}

class StoredValueTest : public ::testing::TestWithParam<DType> {};

TEST_P(StoredValueTest, GivenKnownBlocksThenEveryBitIsThatOfTheFormatsDefinition) {
  const DType dtype = GetParam();
  const KnownBlocks known = known_blocks(dtype);
  ASSERT_GE(known.values.size(), 50u);
  for (size_t i = 0; i < known.values.size(); ++i) {
    const float value = stored_value(dtype, known.row.data(), static_cast<int64_t>(i));
    ASSERT_TRUE(same_value(value, known.values[i])) << "value " << i << ": " << value << ", not " << known.values[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredValueTest, ::testing::ValuesIn(formats_of_gguf()),
                         [](const auto& test) { return std::string(name(test.param)); });

// The definitions of tensor/dtype.h, for blocks whose parts are given one by one.
TEST(CodedValues, AreTheirCodesLessTheZeroTimesTheScale) {
  const auto row_of = [](std::initializer_list<std::pair<const void*, size_t>> parts) {
    std::vector<uint8_t> row;
    for (const auto& [from, size] : parts)
      row.insert(row.end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + size);
    return row;
  };
  std::array<uint8_t, 64> codes{};
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 37 + 11);
  const auto nibble = [&](size_t i) {
    return i % 32 < 16 ? codes[i / 32 * 16 + i % 16] & 15 : codes[i / 32 * 16 + i % 16] >> 4;
  };
  const uint16_t half = testing::half_bits(0.375f);
  const float number = 0.1f;
  const uint8_t zero = 16;
  const int16_t wide_zero = -128;
  for (const DType dtype : {DType::kU4_32, DType::kU4_64, DType::kU4_128}) {
    const auto row = row_of({{&half, 2}, {&zero, 1}, {codes.data(), 64}});
    for (size_t i = 0; i < static_cast<size_t>(info(dtype).block_values); ++i)
      EXPECT_EQ(stored_value(dtype, row.data(), static_cast<int64_t>(i)), 0.375f * static_cast<float>(nibble(i) - 16));
  }
  const auto wide = row_of({{&number, 4}, {&zero, 1}, {codes.data(), 16}});
  const auto bytes = row_of({{&number, 4}, {codes.data(), 64}, {codes.data(), 64}});
  const auto with_zeros = row_of({{&number, 4}, {&wide_zero, 2}, {codes.data(), 32}});
  for (size_t i = 0; i < 32; ++i) {
    const auto at = static_cast<int64_t>(i);
    const auto byte = static_cast<int8_t>(codes[i]);
    EXPECT_EQ(stored_value(DType::kU4_32_F32, wide.data(), at), 0.1f * static_cast<float>(nibble(i) - 16));
    EXPECT_EQ(stored_value(DType::kI8_32, bytes.data(), at), 0.1f * static_cast<float>(byte));
    EXPECT_EQ(stored_value(DType::kI8_128, bytes.data(), at + 64), 0.1f * static_cast<float>(byte));
    EXPECT_EQ(stored_value(DType::kI8_32_Z, with_zeros.data(), at), 0.1f * static_cast<float>(byte + 128));
  }
  const uint16_t half_fraction = testing::half_bits(7.375f);
  const float fraction = 7.3f;
  const auto half_zeros = row_of({{&half, 2}, {&half_fraction, 2}, {codes.data(), 64}});
  const auto float_zeros = row_of({{&number, 4}, {&fraction, 4}, {codes.data(), 16}});
  for (size_t i = 0; i < 32; ++i) {
    const auto at = static_cast<int64_t>(i);
    const auto byte = static_cast<int8_t>(codes[i]);
    EXPECT_EQ(stored_value(DType::kU4_64_HZ, half_zeros.data(), at), 0.375f * (static_cast<float>(nibble(i)) - 7.375f));
    EXPECT_EQ(stored_value(DType::kI8_64_HZ, half_zeros.data(), at),
              0.375f * (static_cast<float>(byte + 128) - 7.375f));
    EXPECT_EQ(stored_value(DType::kU4_32_FZ, float_zeros.data(), at),
              0.1f * (static_cast<float>(nibble(i)) - fraction));
  }
  for (size_t i = 0; i < 64; ++i) {
    const auto at = static_cast<int64_t>(i);
    EXPECT_EQ(stored_value(DType::kNF4, bytes.data(), at), 0.1f * kNf4Levels[nibble(i)]);
    EXPECT_EQ(stored_value(DType::kFP4, bytes.data(), at), 0.1f * kFp4Levels[nibble(i)]);
  }
}

class DequantiseTest : public ::testing::TestWithParam<std::string> {};

// One row of `values` values through an embedding.
std::vector<float> dequantised(Backend& backend, DType dtype, const std::vector<uint8_t>& row, int64_t values) {
  const std::vector<TokenId> ids = {0};
  std::vector<float> out(static_cast<size_t>(values));
  const ResidentTable table = backend.table({row.data(), dtype, Shape{1, values}}).value();
  backend(EmbeddingArgs{ids.data(), 1, table.view, out.data(), table.row_stride});
  return out;
}

TEST_P(DequantiseTest, GivenKnownBlocksThenEveryBitIsThatOfTheFormatsDefinition) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  for (const DType dtype : formats_of_gguf()) {
    SCOPED_TRACE(name(dtype));
    const KnownBlocks known = known_blocks(dtype);
    const auto out = dequantised(*backend, dtype, known.row, static_cast<int64_t>(known.values.size()));
    for (size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(same_value(out[i], known.values[i])) << "value " << i;
  }
}

TEST_P(DequantiseTest, GivenBlocksOfRandomBitsThenItAgreesWithTheReferenceToTheBit) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  constexpr uint64_t kSeed = 61;
  Random random(kSeed);
  for (const DType dtype : kAllWeightFormats) {
    SCOPED_TRACE(::testing::Message() << name(dtype) << ", seed " << kSeed);
    constexpr int64_t kValues = 256 * 40;
    std::vector<uint8_t> row(static_cast<size_t>(row_bytes(dtype, kValues)));
    for (uint8_t& byte : row) byte = static_cast<uint8_t>(random.between(0, 255));
    const std::vector<float> out = dequantised(*backend, dtype, row, kValues);
    for (int64_t i = 0; i < kValues; ++i) {
      ASSERT_TRUE(same_value(out[static_cast<size_t>(i)], stored_value(dtype, row.data(), i))) << "value " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, DequantiseTest, ::testing::ValuesIn(kDevices),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops
