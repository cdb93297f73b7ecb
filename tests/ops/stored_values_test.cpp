// Blocks of the package `gguf` and their values: tests/data/gguf_quants, made by scripts/make_gguf_quant_data.py.
#include "tensor/stored_values.h"

#include <gtest/gtest.h>

#include <algorithm>
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
  std::erase(formats, DType::kF32);
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
  for (const DType dtype : formats_of_gguf()) {
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
