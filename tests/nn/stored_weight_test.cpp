// Every format of weights, whole, cut and turned, against numbers that a reader in double precision finds in the same
// bytes.
#include "nn/stored_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "nn/loader.h"
#include "ops/reference/reference_backend.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kStored = 24;    // rows
constexpr int64_t kAcross = 256;   // columns
constexpr int64_t kStackSize = 3;  // matrices of MXFP4's stack, of which one is looked at

// A matrix in a checkpoint, and what it means.
struct Sample {
  MemoryCheckpoint checkpoint;
  WeightSpec spec{"w.weight", {kStored, kAcross}};
  std::vector<double> values;  // [stored rows, kAcross]
};

class Bytes {
 public:
  explicit Bytes(uint64_t seed) : engine_(seed) {}
  int below(int count) { return static_cast<int>(engine_() % static_cast<uint64_t>(count)); }
  template <typename T>
  void add(T value) {
    const auto* from = reinterpret_cast<const uint8_t*>(&value);
    bytes.insert(bytes.end(), from, from + sizeof(value));
  }
  std::vector<uint8_t> bytes;

 private:
  std::mt19937_64 engine_;
};

// Numbers that all of F32, F16 and BF16 hold.
void add_numbers(Sample& sample, DType dtype) {
  Bytes bytes(1);
  for (int64_t i = 0; i < kStored * kAcross; ++i) {
    const float value = static_cast<float>(bytes.below(255) - 127) / 64;
    sample.values.push_back(value);
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    // Of a half: five bits of exponent, of which 15 is that of 1, and ten of fraction.
    const uint32_t half =
        value == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff);
    if (dtype == DType::kF32) bytes.add(value);
    if (dtype == DType::kF16) bytes.add(static_cast<uint16_t>(half));
    if (dtype == DType::kBF16) bytes.add(static_cast<uint16_t>(bits >> 16));
  }
  sample.checkpoint.add("w.weight", dtype, {kStored, kAcross}, bytes.bytes);
}

// Q8_0: a half of 1/4 or 1/2, then 32 codes.
void add_blocks(Sample& sample) {
  Bytes bytes(2);
  for (int64_t block = 0; block < kStored * kAcross / 32; ++block) {
    const bool large = bytes.below(2) == 1;
    bytes.add(static_cast<uint16_t>(large ? 0x3800 : 0x3400));
    for (int i = 0; i < 32; ++i) {
      const int code = bytes.below(255) - 127;
      bytes.add(static_cast<int8_t>(code));
      sample.values.push_back(code * (large ? 0.5 : 0.25));
    }
  }
  sample.checkpoint.add("w.weight", DType::kQ8_0, {kStored, kAcross}, bytes.bytes);
}

double float8(int code) {
  const int exponent = code >> 3 & 15;
  const double magnitude = exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(1.0 + (code & 7) / 8.0, exponent - 7);
  return code & 0x80 ? -magnitude : magnitude;
}

// Scales for every block_rows x block_columns, powers of two, so that BF16 holds the values.
void add_float8(Sample& sample, int64_t block_rows, int64_t block_columns) {
  Bytes codes(3);
  Bytes scales(4);
  const Shape shape = {(kStored + block_rows - 1) / block_rows, (kAcross + block_columns - 1) / block_columns};
  std::vector<float> powers;
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    powers.push_back(std::ldexp(1.0f, -scales.below(6)));
    scales.add(powers.back());
  }
  for (int64_t i = 0; i < kStored * kAcross; ++i) {
    const int code = codes.below(2) * 128 + codes.below(127);
    codes.add(static_cast<uint8_t>(code));
    const int64_t scale = i / kAcross / block_rows * shape[1] + i % kAcross / block_columns;
    sample.values.push_back(float8(code) * powers[static_cast<size_t>(scale)]);
  }
  sample.checkpoint.set_config({{"quantization_config", {{"weight_block_size", {block_rows, block_columns}}}}});
  sample.checkpoint.add("w.weight", DType::kF8E4M3, {kStored, kAcross}, codes.bytes);
  sample.checkpoint.add("w.weight_scale_inv", DType::kF32, shape, scales.bytes);
}

// A stack in two tensors; the values are those of its second matrix.
void add_mxfp4(Sample& sample) {
  constexpr double kLevels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  Bytes blocks(5);
  Bytes exponents(6);
  for (int64_t block = 0; block < kStackSize * kStored * kAcross / 32; ++block) {
    const int exponent = 125 + exponents.below(5);
    exponents.add(static_cast<uint8_t>(exponent));
    for (int pair = 0; pair < 16; ++pair) {
      const int low = blocks.below(16);
      const int high = blocks.below(16);
      blocks.add(static_cast<uint8_t>(low | high << 4));
      for (const int code : {low, high}) {
        const double value = std::ldexp(kLevels[code & 7], exponent - 127);
        if (block / (kStored * kAcross / 32) == 1) sample.values.push_back(code & 8 ? -value : value);
      }
    }
  }
  sample.spec = {"w", {kStackSize, kStored, kAcross}};
  sample.checkpoint.add("w_blocks", DType::kU8, {kStackSize, kStored, kAcross / 32, 16}, blocks.bytes);
  sample.checkpoint.add("w_scales", DType::kU8, {kStackSize, kStored, kAcross / 32}, exponents.bytes);
}

struct Case {
  std::string name;
  void (*add)(Sample& sample);
  int64_t grain;
  DType form;    // of the whole
  DType turned;  // of its columns as rows
};

const Case kCases[] = {
    {"F32", [](Sample& s) { add_numbers(s, DType::kF32); }, 1, DType::kF32, DType::kF32},
    {"F16", [](Sample& s) { add_numbers(s, DType::kF16); }, 1, DType::kF16, DType::kF16},
    {"BF16", [](Sample& s) { add_numbers(s, DType::kBF16); }, 1, DType::kBF16, DType::kBF16},
    {"Q8_0", [](Sample& s) { add_blocks(s); }, 32, DType::kQ8_0, DType::kF32},
    {"F8_one", [](Sample& s) { add_float8(s, kStored, kAcross); }, 1, DType::kF8E4M3, DType::kBF16},
    {"F8_rows", [](Sample& s) { add_float8(s, 1, kAcross); }, 1, DType::kF8E4M3, DType::kBF16},
    {"F8_blocks_of_32", [](Sample& s) { add_float8(s, 8, 32); }, 32, DType::kBF16, DType::kBF16},
    {"F8_blocks_of_128", [](Sample& s) { add_float8(s, 8, 128); }, 128, DType::kF8E4M3_128, DType::kBF16},
    {"MXFP4", [](Sample& s) { add_mxfp4(s); }, 32, DType::kMXFP4, DType::kBF16},
};

class StoredWeights : public ::testing::TestWithParam<Case> {
 protected:
  StoredWeights() : backend_(ops::make_reference_backend()) {
    GetParam().add(sample_);
    loader_ = std::make_unique<Loader>(Loader::Mode::kLoad, sample_.checkpoint, *backend_);
    weight_ = loader_->weight(sample_.spec);
    if (sample_.spec.shape.rank() == 3) weight_ = weight_.part(1, kStackSize);
  }

  double value(int64_t row, int64_t column) const {
    return sample_.values[static_cast<size_t>(row * kAcross + column)];
  }

  // That a placed `weight` is of `form` and at (row, column) what `expected` says, by its product with one unit vector
  // for each column; that a plan takes as much.
  template <typename Expected>
  void expect_numbers(const Result<StoredWeight>& weight, int64_t rows, int64_t columns, DType form,
                      const Expected& expected) {
    ASSERT_TRUE(weight.ok()) << weight.status().message();
    ASSERT_EQ(weight->rows(), rows);
    ASSERT_EQ(weight->columns(), columns);
    const int64_t before = loader_->bytes();
    const auto placed = loader_->place({&*weight, 1});
    ASSERT_TRUE(loader_->finish({}).ok()) << loader_->finish({}).message();
    ASSERT_EQ(placed.size(), 1u);
    EXPECT_EQ(placed[0]->dtype(), form);
    Loader plan(Loader::Mode::kPlan, sample_.checkpoint, *backend_);
    EXPECT_TRUE(plan.place({&*weight, 1}).empty());
    EXPECT_EQ(plan.bytes(), loader_->bytes() - before);
    std::vector<float> units(static_cast<size_t>(columns * columns));
    for (int64_t i = 0; i < columns; ++i) units[static_cast<size_t>(i * columns + i)] = 1;
    std::vector<float> out(static_cast<size_t>(columns * rows));
    (*backend_)(ops::LinearArgs{.x = units.data(),
                                .x_stride = columns,
                                .num_rows = columns,
                                .weight = placed[0].get(),
                                .out = out.data(),
                                .out_stride = rows});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column)
        ASSERT_EQ(out[static_cast<size_t>(column * rows + row)], expected(row, column)) << row << ", " << column;
    }
  }

  Sample sample_;
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<Loader> loader_;
  StoredWeight weight_;
};

TEST_P(StoredWeights, WholeAreTheNumbersThatTheFileMeans) {
  expect_numbers(weight_, kStored, kAcross, GetParam().form, [&](int64_t r, int64_t c) { return value(r, c); });
}

TEST_P(StoredWeights, RowsAreCutAnywhere) {
  expect_numbers(weight_.cut_rows(5, 14), 14, kAcross, GetParam().form,
                 [&](int64_t r, int64_t c) { return value(5 + r, c); });
}

TEST_P(StoredWeights, RowsThatAreInTurnsAreTakenApartAndCutAcrossTheSeam) {
  expect_numbers(weight_.taken_apart(2).cut_rows(10, 4), 4, kAcross, GetParam().form, [&](int64_t r, int64_t c) {
    const int64_t row = 10 + r;
    return value(row < 12 ? 2 * row : 2 * (row - 12) + 1, c);
  });
}

TEST_P(StoredWeights, ColumnsAreCutAtTheGrain) {
  const int64_t begin = GetParam().grain == 1 ? 3 : GetParam().grain;
  expect_numbers(weight_.cut_columns(begin, 128), kStored, 128, GetParam().form,
                 [&](int64_t r, int64_t c) { return value(r, begin + c); });
}

TEST_P(StoredWeights, TransposedAndThenCutAreTheColumns) {
  const auto turned = weight_.transposed();
  expect_numbers(turned, kAcross, kStored, GetParam().turned, [&](int64_t r, int64_t c) { return value(c, r); });
  expect_numbers(turned.cut_columns(7, 9), kAcross, 9, GetParam().turned,
                 [&](int64_t r, int64_t c) { return value(7 + c, r); });
  expect_numbers(turned.cut_rows(128, 128), 128, kStored, GetParam().turned,
                 [&](int64_t r, int64_t c) { return value(c, 128 + r); });
  expect_numbers(turned.taken_apart(2), kAcross, kStored, GetParam().turned,
                 [&](int64_t r, int64_t c) { return value(c, r < 128 ? 2 * r : 2 * (r - 128) + 1); });
}

TEST_P(StoredWeights, ACutInsideOfAGroupIsRefusedByName) {
  const int64_t grain = GetParam().grain;
  if (grain == 1) {
    EXPECT_TRUE(weight_.cut_columns(1, 1).ok());
    return;
  }
  for (const auto& cut : {weight_.cut_columns(1, grain), weight_.cut_columns(0, grain + 1),
                          weight_.transposed().cut_rows(grain / 2, grain / 2)}) {
    ASSERT_FALSE(cut.ok());
    EXPECT_THAT(cut.status().message(), HasSubstr(weight_.name + ": columns "));
    EXPECT_THAT(cut.status().message(), HasSubstr("expected multiples of " + std::to_string(grain)));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, StoredWeights, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return test.param.name; });

// What finish() says once `spec` is declared.
std::string said_of(const MemoryCheckpoint& checkpoint, const WeightSpec& spec) {
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kPlan, checkpoint, *backend);
  EXPECT_FALSE(loader.weight(spec).present());
  return loader.finish({}).message();
}

TEST(StoredWeightErrors, TensorsThatAreMissingOrDoNotFitAreNamed) {
  const WeightSpec stack{"w", {2, 4, 64}};
  MemoryCheckpoint no_scales;
  no_scales.add("w_blocks", DType::kU8, {2, 4, 2, 16}, std::vector<uint8_t>(256));
  EXPECT_THAT(said_of(no_scales, stack), HasSubstr("1 missing: w_scales"));
  MemoryCheckpoint misshaped;
  misshaped.add("w_blocks", DType::kU8, {2, 4, 2, 16}, std::vector<uint8_t>(256));
  misshaped.add("w_scales", DType::kU8, {2, 4, 1}, std::vector<uint8_t>(8));
  EXPECT_THAT(said_of(misshaped, stack), HasSubstr("w_scales (found [2, 4, 1], expected [2, 4, 2])"));
  MemoryCheckpoint of_floats;
  of_floats.add("w_blocks", DType::kF32, {2, 4, 2, 16}, std::vector<uint8_t>(1024));
  of_floats.add("w_scales", DType::kU8, {2, 4, 2}, std::vector<uint8_t>(16));
  EXPECT_THAT(said_of(of_floats, stack), HasSubstr("w_blocks: blocks of F32 with scales of U8 for rows of 64 values"));
  MemoryCheckpoint float8;
  float8.add("w.weight", DType::kF8E4M3, {4, 8}, std::vector<uint8_t>(32));
  EXPECT_THAT(said_of(float8, {"w.weight", {4, 8}}), HasSubstr("neither w.weight_scale nor w.weight_scale_inv"));
  MemoryCheckpoint nothing;
  EXPECT_THAT(said_of(nothing, stack), HasSubstr("1 missing: w"));
}

TEST(StoredWeightErrors, BlocksAndStacksOfCodesMayNotBeStoredTransposed) {
  MemoryCheckpoint blocks;
  blocks.add("w.weight", DType::kQ8_0, {32, 64}, std::vector<uint8_t>(32 * 68));
  EXPECT_THAT(said_of(blocks, {"w.weight", {64, 32}, /*transposed=*/true}),
              HasSubstr("w.weight: a matrix of Q8_0 that is stored transposed; supported: formats of single numbers"));
  MemoryCheckpoint float8;
  float8.add("w", DType::kF8E4M3, {2, 32, 64}, std::vector<uint8_t>(2 * 32 * 64));
  EXPECT_THAT(said_of(float8, {"w", {2, 64, 32}, /*transposed=*/true}),
              HasSubstr("w: a stack of F8_E4M3 that is stored transposed"));
}

}  // namespace
}  // namespace quire::nn
