// The formats of the KV cache, written and read back; the bytes that are written; the size of it all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/reference/kv_values.h"
#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using reference::code_to_float;
using reference::float_to_code;
using testing::kDevices;
using testing::Random;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
const std::vector<DType> kEightBitFloats = {DType::kF8E4M3, DType::kF8E5M2};
const std::vector<DType> kSmallFloats = {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2};

int num_codes(DType dtype) {
  return 1 << (8 * info(dtype).block_bytes);
}

// A cache with its own memory, which begins as `fill` bytes.
class Cache {
 public:
  // With keys as `backend` wants them.
  Cache(const Backend& backend, DType dtype, int64_t num_blocks, int32_t num_kv_heads, int32_t head_dim,
        int32_t block_size, uint8_t fill = 0xff) {
    view_ = {.dtype = dtype,
             .num_blocks = num_blocks,
             .num_kv_heads = num_kv_heads,
             .head_dim = head_dim,
             .block_size = block_size,
             .keys_by_token = backend.keys_by_token()};
    keys_.assign(static_cast<size_t>(num_blocks * block_bytes(view_)), fill);
    values_ = keys_;
    view_.keys = keys_.data();
    view_.values = values_.data();
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const KvCacheView& view() const { return view_; }
  std::vector<uint8_t>& keys() { return keys_; }
  std::vector<uint8_t>& values() { return values_; }

  // keys and values: [slots, num_kv_heads, head_dim]
  void write(Backend& backend, const std::vector<float>& keys, const std::vector<float>& values,
             const std::vector<int64_t>& slots) {
    KvWriteArgs args;
    args.keys = keys.data();
    args.values = values.data();
    args.token_stride = int64_t{view_.num_kv_heads} * view_.head_dim;
    args.num_tokens = static_cast<int64_t>(slots.size());
    args.slots = slots.data();
    args.cache = view_;
    backend(args);
  }
  float key(int64_t slot, int64_t head, int64_t d) const { return reference::load_kv(view_, true, slot, head, d); }
  float value(int64_t slot, int64_t head, int64_t d) const { return reference::load_kv(view_, false, slot, head, d); }

 private:
  KvCacheView view_;
  std::vector<uint8_t> keys_;
  std::vector<uint8_t> values_;
};

// What attention to the one token at `slot` gives: its value, as the backend reads it.
std::vector<float> read_value(Backend& backend, const Cache& cache, BlockId block) {
  const KvCacheView& view = cache.view();
  const std::vector<float> query(static_cast<size_t>(view.num_kv_heads * view.head_dim), 0.0f);
  std::vector<float> out(query.size());
  const std::vector<int32_t> offsets = {0, 1};
  const std::vector<int32_t> contexts = {1};
  const std::vector<BlockId> table = {block};
  PagedAttentionArgs args;
  args.queries = query.data();
  args.query_stride = static_cast<int64_t>(query.size());
  args.num_heads = view.num_kv_heads;
  args.cache = view;
  args.num_sequences = 1;
  args.query_offsets = offsets.data();
  args.context_lengths = contexts.data();
  args.block_tables = table.data();
  args.block_table_stride = 1;
  args.out = out.data();
  backend(args);
  return out;
}

// Numbers around everything that can go wrong: every code, the middle between neighbours and a hair to either side of
// it, what is too small, too large, or no number.
std::vector<float> awkward_numbers(DType dtype) {
  std::vector<float> numbers = {0.0f,
                                -0.0f,
                                kInfinity,
                                -kInfinity,
                                kNan,
                                std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::lowest(),
                                std::numeric_limits<float>::denorm_min(),
                                std::numeric_limits<float>::min()};
  const bool small = dtype != DType::kF32 && dtype != DType::kI8;
  const std::vector<DType> formats = small ? std::vector<DType>{dtype} : kSmallFloats;
  for (const DType format : formats) {
    for (int code = 0; code + 1 < num_codes(format); ++code) {
      const float a = code_to_float(format, static_cast<uint16_t>(code));
      const float b = code_to_float(format, static_cast<uint16_t>(code + 1));
      const float middle = a / 2 + b / 2;
      numbers.insert(numbers.end(), {a, middle, std::nextafter(middle, a), std::nextafter(middle, b)});
    }
  }
  return numbers;
}

// ---- the oracle's own rounding, against the definition

class EightBitFloat : public ::testing::TestWithParam<DType> {};

TEST_P(EightBitFloat, RoundsToTheNearestOfAllCodesAndToTheEvenOneOfTwo) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  std::vector<float> numbers = awkward_numbers(GetParam());
  for (int i = 0; i < 3000; ++i) {
    numbers.push_back(std::ldexp(random.normal(), static_cast<int>(random.between(-20, 18))));
  }
  for (const float number : numbers) {
    if (std::isnan(number)) continue;
    const uint16_t chosen = float_to_code(GetParam(), number);
    const double away = std::fabs(static_cast<double>(number) - code_to_float(GetParam(), chosen));
    EXPECT_EQ(std::signbit(number), (chosen & 0x80) != 0) << number;
    for (int code = 0; code < 256; ++code) {
      const double value = code_to_float(GetParam(), static_cast<uint16_t>(code));
      if (std::isnan(value) || std::isinf(value) || std::isinf(number)) continue;
      const double distance = std::fabs(static_cast<double>(number) - value);
      ASSERT_GE(distance, away) << number << " became code " << chosen << ", " << code << " is nearer";
      const bool saturated = std::fabs(number) > 57344.0f;  // a double's last bit is worth more than a step there
      if (distance == away && code != chosen && !saturated && (code & 0x7f) != (chosen & 0x7f)) {
        ASSERT_EQ(chosen % 2, 0) << number << " lies between codes " << chosen << " and " << code;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, EightBitFloat, ::testing::ValuesIn(kEightBitFloats),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(KvFormats, HaveTheLimitsThatTheirDefinitionsGiveThem) {
  struct Case {
    DType dtype;
    float number;
    float stored;
  };
  const Case cases[] = {{DType::kF8E4M3, 448.0f, 448.0f},      {DType::kF8E4M3, 1e9f, 448.0f},
                        {DType::kF8E4M3, -kInfinity, -448.0f}, {DType::kF8E4M3, 0x1p-9f, 0x1p-9f},
                        {DType::kF8E4M3, 0x1p-10f, 0.0f},      {DType::kF8E4M3, 0x1.8p-10f, 0x1p-9f},
                        {DType::kF8E4M3, 0x1p-6f, 0x1p-6f},    {DType::kF8E4M3, 17.0f, 16.0f},
                        {DType::kF8E4M3, 19.0f, 20.0f},        {DType::kF8E5M2, 57344.0f, 57344.0f},
                        {DType::kF8E5M2, 1e30f, 57344.0f},     {DType::kF8E5M2, kInfinity, 57344.0f},
                        {DType::kF8E5M2, 0x1p-16f, 0x1p-16f},  {DType::kF8E5M2, 0x1p-17f, 0.0f},
                        {DType::kF8E5M2, 9.0f, 8.0f},          {DType::kF8E5M2, 11.0f, 12.0f},
                        {DType::kF16, 65504.0f, 65504.0f},     {DType::kF16, 65519.0f, 65504.0f},
                        {DType::kF16, 65520.0f, kInfinity},    {DType::kF16, 0x1p-24f, 0x1p-24f},
                        {DType::kBF16, kInfinity, kInfinity},  {DType::kBF16, 1.00390625f, 1.0f},
                        {DType::kBF16, 1.01171875f, 1.015625f}};
  for (const Case& one : cases) {
    EXPECT_EQ(code_to_float(one.dtype, float_to_code(one.dtype, one.number)), one.stored)
        << name(one.dtype) << " of " << one.number;
  }
  for (const DType dtype : kSmallFloats) {
    EXPECT_TRUE(std::isnan(code_to_float(dtype, float_to_code(dtype, kNan)))) << name(dtype);
    EXPECT_TRUE(std::signbit(code_to_float(dtype, float_to_code(dtype, -0.0f)))) << name(dtype);
  }
}

// ---- every backend

class KvFormatTest : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  const std::string& isa() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(KvFormatTest, EveryNumberIsWrittenAsTheBytesOfTheReference) {
  QUIRE_BACKEND_OR_SKIP(backend, isa());
  auto reference = make_reference_backend();
  std::vector<float> numbers = awkward_numbers(dtype());
  Random random(3);
  for (int i = 0; i < 10000; ++i) {
    numbers.push_back(std::ldexp(random.normal(), static_cast<int>(random.between(-30, 20))));
  }
  constexpr int32_t kHeadDim = 40;
  const auto tokens = static_cast<int64_t>(numbers.size()) / kHeadDim;
  const std::vector<float> keys(numbers.begin(), numbers.begin() + tokens * kHeadDim);
  const std::vector<float> values(keys.rbegin(), keys.rend());
  std::vector<int64_t> slots(static_cast<size_t>(tokens));
  std::iota(slots.begin(), slots.end(), 0);
  Cache one(*backend, dtype(), (tokens + 15) / 16, 1, kHeadDim, 16);
  Cache other(*backend, dtype(), (tokens + 15) / 16, 1, kHeadDim, 16);
  one.write(*backend, keys, values, slots);
  other.write(*reference, keys, values, slots);
  EXPECT_TRUE(one.keys() == other.keys());
  EXPECT_TRUE(one.values() == other.values());
}

TEST_P(KvFormatTest, EveryShapeIsWrittenAsTheBytesOfTheReference) {
  QUIRE_BACKEND_OR_SKIP(backend, isa());
  auto reference = make_reference_backend();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  for (const int32_t head_dim : {2, 6, 16, 20, 40, 64, 80, 128, 130}) {
    for (const int32_t block_size : {1, 8, 16, 32, 100}) {
      constexpr int64_t kBlocks = 3;
      Cache one(*backend, dtype(), kBlocks, 2, head_dim, block_size);
      Cache other(*backend, dtype(), kBlocks, 2, head_dim, block_size);
      // Some of the slots; the others must keep their bytes. Some tokens go nowhere.
      std::vector<int64_t> slots = {kNoSlot};
      for (int64_t slot = kBlocks * block_size - 1; slot >= 0; --slot) {
        if (random.between(0, 2) > 0) slots.push_back(slot);
        if (random.between(0, 9) == 0) slots.push_back(kNoSlot);
      }
      const auto size = static_cast<int64_t>(slots.size()) * 2 * head_dim;
      const std::vector<float> keys = random.normals(size, 3.0f);
      const std::vector<float> values = random.normals(size);
      one.write(*backend, keys, values, slots);
      other.write(*reference, keys, values, slots);
      ASSERT_TRUE(one.keys() == other.keys()) << "head_dim " << head_dim << ", block_size " << block_size;
      ASSERT_TRUE(one.values() == other.values()) << "head_dim " << head_dim << ", block_size " << block_size;
    }
  }
}

TEST_P(KvFormatTest, WritingWhatWasReadChangesNoByte) {
  QUIRE_BACKEND_OR_SKIP(backend, isa());
  Random random(5);
  constexpr int32_t kHeadDim = 24;
  Cache first(*backend, dtype(), 4, 2, kHeadDim, 8);
  Cache second(*backend, dtype(), 4, 2, kHeadDim, 8);
  std::vector<int64_t> slots(32);
  std::iota(slots.begin(), slots.end(), 0);
  first.write(*backend, random.normals(32 * 2 * kHeadDim), random.normals(32 * 2 * kHeadDim), slots);
  std::vector<float> keys;
  std::vector<float> values;
  for (const int64_t slot : slots) {
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t d = 0; d < kHeadDim; ++d) {
        keys.push_back(first.key(slot, head, d));
        values.push_back(first.value(slot, head, d));
      }
    }
  }
  second.write(*backend, keys, values, slots);
  if (dtype() != DType::kI8) {
    EXPECT_TRUE(first.keys() == second.keys());
    EXPECT_TRUE(first.values() == second.values());
    return;
  }
  // 127 times the scale, divided by 127, may differ from the scale in its last bit; the whole numbers may not.
  for (const int64_t slot : slots) {
    for (int64_t d = 0; d < kHeadDim; ++d) {
      EXPECT_NEAR(second.key(slot, 1, d), first.key(slot, 1, d), 1e-6f * std::fabs(first.key(slot, 1, d)));
      EXPECT_NEAR(second.value(slot, 0, d), first.value(slot, 0, d), 1e-6f * std::fabs(first.value(slot, 0, d)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, KvFormatTest,
                         ::testing::Combine(::testing::ValuesIn(kDevices), ::testing::ValuesIn(testing::kKvFormats)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::string(name(std::get<1>(test.param)));
                         });

class SmallFloatTest : public KvFormatTest {};

TEST_P(SmallFloatTest, EveryCodeIsReadAsItsValueAndWrittenBackAsItself) {
  QUIRE_BACKEND_OR_SKIP(backend, isa());
  constexpr int32_t kHeadDim = 128;
  const int64_t blocks = num_codes(dtype()) / kHeadDim;
  Cache codes(*backend, dtype(), blocks, 1, kHeadDim, 1);
  Cache again(*backend, dtype(), blocks, 1, kHeadDim, 1);
  const int bytes = info(dtype()).block_bytes;
  for (int code = 0; code < num_codes(dtype()); ++code) {
    std::memcpy(codes.values().data() + code * bytes, &code, static_cast<size_t>(bytes));
  }
  std::fill(codes.keys().begin(), codes.keys().end(), uint8_t{0});
  for (int64_t block = 0; block < blocks; ++block) {
    const std::vector<float> read = read_value(*backend, codes, static_cast<BlockId>(block));
    for (int64_t d = 0; d < kHeadDim; ++d) {
      const auto code = static_cast<uint16_t>(block * kHeadDim + d);
      const float expected = code_to_float(dtype(), code);
      const float got = read[static_cast<size_t>(d)];
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got)) << "code " << code;
      } else {
        // The sum begins at 0, so that it cannot be -0.
        ASSERT_EQ(got, expected) << "code " << code;
      }
    }
    std::vector<float> stored;
    for (int64_t d = 0; d < kHeadDim; ++d) stored.push_back(codes.value(block, 0, d));
    again.write(*backend, stored, stored, {block});
  }
  for (int code = 0; code < num_codes(dtype()); ++code) {
    uint16_t back = 0;
    std::memcpy(&back, again.values().data() + code * bytes, static_cast<size_t>(bytes));
    const float value = code_to_float(dtype(), static_cast<uint16_t>(code));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(code_to_float(dtype(), back))) << "code " << code;
    } else if (dtype() == DType::kF8E5M2 && std::isinf(value)) {
      ASSERT_EQ(std::fabs(code_to_float(dtype(), back)), 57344.0f);
    } else {
      ASSERT_EQ(back, code);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SmallFloatTest,
                         ::testing::Combine(::testing::ValuesIn(kDevices), ::testing::ValuesIn(kSmallFloats)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::string(name(std::get<1>(test.param)));
                         });

class Int8Test : public ::testing::TestWithParam<std::string> {};

TEST_P(Int8Test, EveryNumberIsWithinHalfAStepOfItsVectorsLargest) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  constexpr int32_t kHeadDim = 40;
  Cache cache(*backend, DType::kI8, 2, 3, kHeadDim, 16);
  std::vector<int64_t> slots(32);
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<float> keys;
  for (int64_t vector = 0; vector < 32 * 3; ++vector) {
    const float deviation = std::ldexp(1.0f, static_cast<int>(random.between(-40, 40)));
    for (int64_t d = 0; d < kHeadDim; ++d) keys.push_back(random.normal(deviation));
  }
  const std::vector<float> values(keys.rbegin(), keys.rend());
  cache.write(*backend, keys, values, slots);
  for (int64_t vector = 0; vector < 32 * 3; ++vector) {
    const float* key = keys.data() + vector * kHeadDim;
    const float* value = values.data() + vector * kHeadDim;
    float largest_key = 0;
    float largest_value = 0;
    for (int64_t d = 0; d < kHeadDim; ++d) {
      largest_key = std::max(largest_key, std::fabs(key[d]));
      largest_value = std::max(largest_value, std::fabs(value[d]));
    }
    for (int64_t d = 0; d < kHeadDim; ++d) {
      EXPECT_NEAR(cache.key(vector / 3, vector % 3, d), key[d], largest_key / 127 * 0.5001f);
      EXPECT_NEAR(cache.value(vector / 3, vector % 3, d), value[d], largest_value / 127 * 0.5001f);
    }
  }
}

TEST_P(Int8Test, AVectorOfZerosStaysZerosAndOneWithNanIsNanAlone) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Cache cache(*backend, DType::kI8, 1, 1, 20, 8);
  std::vector<float> vectors(5 * 20, 0.0f);
  vectors[1 * 20 + 7] = kNan;
  vectors[2 * 20 + 19] = -kInfinity;
  vectors[3 * 20 + 3] = 2.5f;
  vectors[4 * 20 + 0] = std::numeric_limits<float>::denorm_min();
  cache.write(*backend, vectors, vectors, {0, 1, 2, 3, 4});
  for (int64_t d = 0; d < 20; ++d) {
    EXPECT_EQ(cache.key(0, 0, d), 0.0f);
    EXPECT_TRUE(std::isnan(cache.key(1, 0, d)));
    EXPECT_TRUE(std::isnan(cache.value(2, 0, d)));
    EXPECT_NEAR(cache.value(3, 0, d), d == 3 ? 2.5f : 0.0f, 1e-6);
    EXPECT_EQ(cache.key(4, 0, d), 0.0f);
  }
}

TEST_P(Int8Test, EveryNumberAndScaleIsReadAsTheirProduct) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Cache cache(*backend, DType::kI8, 1, 1, 256, 1, 0);
  for (int code = 0; code < 256; ++code) cache.values()[static_cast<size_t>(code)] = static_cast<uint8_t>(code);
  const float scale = 0.0123f;
  std::memcpy(cache.values().data() + 256, &scale, sizeof(scale));
  const std::vector<float> read = read_value(*backend, cache, 0);
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(read[static_cast<size_t>(code)], static_cast<float>(static_cast<int8_t>(code)) * scale);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, Int8Test, ::testing::ValuesIn(kDevices), [](const auto& test) { return test.param; });

// ---- sizes

TEST(KvCacheView, TakesTheBytesOfItsNumbersAndScalesAndNothingElse) {
  const auto bytes = [](DType dtype, int32_t head_dim, int32_t block_size) {
    return block_bytes({nullptr, nullptr, dtype, 1, 3, head_dim, block_size});
  };
  EXPECT_EQ(bytes(DType::kF32, 64, 16), 3 * 64 * 16 * 4);
  EXPECT_EQ(bytes(DType::kF16, 64, 16), 3 * 64 * 16 * 2);
  EXPECT_EQ(bytes(DType::kBF16, 20, 1), 3 * 20 * 2);
  EXPECT_EQ(bytes(DType::kF8E4M3, 40, 8), 3 * 40 * 8);
  EXPECT_EQ(bytes(DType::kF8E5M2, 6, 5), 3 * 6 * 5);
  EXPECT_EQ(bytes(DType::kI8, 64, 16), 3 * (64 + 4) * 16);
  EXPECT_EQ(bytes(DType::kI8, 6, 1), 3 * (6 + 4));
}

TEST(KvCacheViewDeathTest, OfAFormatWithoutKernelsIsRefusedByName) {
  Cache cache(*make_reference_backend(), DType::kF32, 1, 1, 32, 1);
  KvCacheView view = cache.view();
  view.dtype = DType::kQ8_0;
  EXPECT_DEATH(check(view), "a KV cache of Q8_0 has no kernels");
}

TEST(KvCacheViewDeathTest, WhoseBlocksOverlapOrLieAtOddPlacesIsRefused) {
  Cache cache(*make_reference_backend(), DType::kF16, 1, 1, 32, 16);
  KvCacheView view = cache.view();
  view.stride = block_bytes(view) - 4;
  EXPECT_DEATH(check(view), "blocks of 1024 B lie 1020 B apart");
  view.stride = block_bytes(view) + 2;
  EXPECT_DEATH(check(view), "blocks lie 1026 B apart, expected a multiple of 4");
  view.stride = block_bytes(view) + 4;
  check(view);
}

}  // namespace
}  // namespace quire::ops
