#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "ops/reference/reference_backend.h"
#include "tensor/stored_values.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::half_bits;
using testing::kAllWeightFormats;
using testing::kCpuIsas;
using testing::largest_difference;
using testing::Random;
using testing::same_bits;
using testing::StoredWeights;

// x [rows, k] times the packed weight, with strides wider than the rows; what lies between the rows must stay.
std::vector<float> product(Backend& backend, const PackedMatrix& weight, const std::vector<float>& x, int64_t first_row,
                           int64_t num_rows, const float* bias) {
  constexpr float kUntouched = 12345.0f;
  const int64_t out_stride = weight.rows() + 3;
  std::vector<float> out(static_cast<size_t>(num_rows * out_stride), kUntouched);
  LinearArgs args;
  args.x = x.data() + first_row * weight.columns();
  args.x_stride = weight.columns();
  args.num_rows = num_rows;
  args.weight = &weight;
  args.bias = bias;
  args.out = out.data();
  args.out_stride = out_stride;
  backend(args);
  std::vector<float> dense;
  for (int64_t row = 0; row < num_rows; ++row) {
    const float* from = out.data() + row * out_stride;
    dense.insert(dense.end(), from, from + weight.rows());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(from[weight.rows() + i], kUntouched);
  }
  return dense;
}

std::unique_ptr<PackedMatrix> packed(Backend& backend, std::vector<TensorView> parts) {
  auto matrix = backend.pack(parts);
  EXPECT_TRUE(matrix.ok()) << matrix.status().message();
  return std::move(matrix).value();
}

bool is_plain(DType dtype) {
  return info(dtype).block_values == 1;
}
// Codes stand for floats: products of whole numbers know them as 8191ths, and so the row's numbers.
bool has_float_levels(DType dtype) {
  return dtype == DType::kNF4 || dtype == DType::kFP4;
}
bool has_byte_codes(DType dtype) {
  switch (dtype) {
    case DType::kI8_32:
    case DType::kI8_128:
    case DType::kQ8_0:
    case DType::kQ8_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
      return true;
    default:
      return false;
  }
}
// Of 256 values of a format that memory holds in another form than the file, or nullopt.
std::optional<int64_t> packed_bytes_of_256(DType dtype) {
  switch (dtype) {
    case DType::kIQ2_XXS:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
      return 2 + 8 * (1 + 16);
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ1_M:
      return 2 + 8 * (2 + 16);
    case DType::kTQ1_0:
      return 2 + 64;
    case DType::kQ8_K:
      return 4 + 256;
    default:
      return std::nullopt;
  }
}

// x as the product sees it: rounded to multiples of a step for every `run` values.
std::vector<float> rounded(std::vector<float> x, size_t run, float levels) {
  for (size_t begin = 0; begin < x.size(); begin += run) {
    float most = 0;
    for (size_t i = begin; i < begin + run; ++i) most = std::max(most, std::fabs(x[i]));
    const float step = most / levels;
    if (step == 0) continue;
    for (size_t i = begin; i < begin + run; ++i) x[i] = std::nearbyint(x[i] * (1.0f / step)) * step;
  }
  return x;
}

// Bits of a code as products see it.
int code_bits(DType dtype) {
  switch (dtype) {
    case DType::kQ2_K:
    case DType::kTQ1_0:
    case DType::kTQ2_0:
      return 2;
    case DType::kQ3_K:
      return 3;
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K:
    case DType::kU4_32:
    case DType::kU4_64:
    case DType::kU4_128:
    case DType::kU4_32_F32:
    case DType::kU4_64_HZ:
    case DType::kU4_32_FZ:
      return 4;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
    case DType::kMXFP4:
    case DType::kNVFP4:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
    case DType::kIQ1_M:
      return 5;
    case DType::kQ6_K:
    case DType::kIQ3_XXS:
      return 6;
    default:
      return 8;
  }
}
size_t steps_of_a_scale(DType dtype) {
  switch (dtype) {
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ6_K:
    case DType::kNVFP4:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ1_M:
      return 16;
    default:
      return 32;
  }
}

// Points (l, factor * l) modulo `step`, as two values that share a byte are rounded to: linear_lattice.kernels.cpp.
struct Lattice {
  int step;
  int factor;
  int most;  // whole steps that the largest value has
};
constexpr Lattice kWholeSums{256, 16, 119};
constexpr Lattice kWholeSumsOfFiveBits{256, 7, 123};
constexpr Lattice kSmallSums{64, 7, 123};

// The point next to (x1, x2) * step, in the floats of the kernels, so that ties are theirs.
std::pair<int, int> nearest_point(const Lattice& lattice, float x1, float x2) {
  const auto whole = [](float x) { return static_cast<int>(std::nearbyint(x)); };
  if (lattice.factor == 7) {
    const int unit = lattice.step / 64;
    const int a = whole((x2 * 9.0f + x1) * static_cast<float>(unit));
    const int b = whole(x1 * 7.0f - x2);
    return {a + 9 * unit * b, 7 * a - unit * b};
  }
  const int second = whole(x2 * 16.0f);
  const int lower = second & 15;
  return {whole(std::fma(static_cast<float>(lower), -0.0625f, x1 * 16.0f)) * 16 + lower, second * 16};
}

// x as the product sees it: pairs of values `span` / 2 apart at points of the lattice.
std::vector<float> on_lattice(std::vector<float> x, const Lattice& lattice, size_t span) {
  for (size_t group = 0; group < x.size(); group += 32) {
    float most = 0;
    for (size_t i = group; i < group + 32; ++i) most = std::max(most, std::fabs(x[i]));
    const float unit = most / static_cast<float>(lattice.most * lattice.step);
    if (unit == 0) continue;
    const float inverse = 1.0f / (unit * static_cast<float>(lattice.step));
    for (size_t i = group; i < group + 32; ++i) {
      if ((i - group) % span >= span / 2) continue;
      float& first = x[i];
      float& second = x[i + span / 2];
      const auto [one, other] = nearest_point(lattice, first * inverse, second * inverse);
      // It is a point of the lattice, and no coordinate is further than half a cell's side.
      EXPECT_EQ((other - lattice.factor * one) % lattice.step, 0);
      const float farthest = lattice.factor == 16 ? 8.1f : 0.6f + 9.0f / 128.0f * static_cast<float>(lattice.step);
      EXPECT_LT(std::fabs(static_cast<float>(one) * unit - first), unit * farthest);
      EXPECT_LT(std::fabs(static_cast<float>(other) * unit - second), unit * std::max(farthest, 5.7f));
      first = static_cast<float>(one) * unit;
      second = static_cast<float>(other) * unit;
    }
  }
  return x;
}

// Numbers rounded to the nearest of bfloat16, ties to even.
std::vector<float> as_bfloat16(std::vector<float> x) {
  for (float& value : x) {
    const auto bits = std::bit_cast<uint32_t>(value);
    value = std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
  }
  return x;
}

// Numbers rounded to the nearest half.
std::vector<float> as_half(std::vector<float> x) {
  for (float& value : x) {
    const uint16_t bits = testing::half_bits(value);
    value = stored_value(DType::kF16, &bits, 0);
  }
  return x;
}

struct LinearCase {
  std::string isa;
  DType dtype;
  ActivationDType activation_dtype;
};

std::string_view activation_name(ActivationDType dtype) {
  switch (dtype) {
    case ActivationDType::kAuto:
      return "auto";
    case ActivationDType::kFloat32:
      return "float32";
    case ActivationDType::kInt8:
      return "int8";
    case ActivationDType::kInt12:
      return "int12";
    case ActivationDType::kInt16:
      return "int16";
    case ActivationDType::kBFloat16:
      return "bfloat16";
  }
  return "?";
}

std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> cases;
  for (const std::string& isa : kCpuIsas) {
    for (const DType dtype : {DType::kF8E4M3_128, DType::kF8E4M3_32})
      cases.push_back({isa, dtype, ActivationDType::kFloat32});
    for (const DType dtype : kAllWeightFormats) {
      cases.push_back({isa, dtype, ActivationDType::kFloat32});
      if (dtype == DType::kBF16) cases.push_back({isa, dtype, ActivationDType::kBFloat16});
      if (is_plain(dtype)) continue;
      cases.push_back({isa, dtype, ActivationDType::kInt16});
      if (has_float_levels(dtype) && isa == "avx2") continue;  // words there, too
      cases.push_back({isa, dtype, ActivationDType::kInt12});
      if (has_float_levels(dtype)) continue;
      // With AVX2 products of two bytes have no room in the sums; signed codes with zeros have none anywhere.
      if (dtype == DType::kI8_32_Z || dtype == DType::kI8_64_HZ) continue;
      if (!has_byte_codes(dtype) || isa != "avx2") cases.push_back({isa, dtype, ActivationDType::kInt8});
    }
  }
  for (const DType dtype : kAllWeightFormats) cases.push_back({"cuda", dtype, ActivationDType::kFloat32});
  for (const DType dtype : {DType::kF8E4M3_128, DType::kF8E4M3_32})
    cases.push_back({"cuda", dtype, ActivationDType::kFloat32});
  cases.push_back({"avx512_bf16", DType::kBF16, ActivationDType::kBFloat16});
  cases.push_back({"avx512_bf16", DType::kBF16, ActivationDType::kAuto});
  return cases;
}

class LinearTest : public ::testing::TestWithParam<LinearCase> {
 protected:
  const std::string& isa() const { return GetParam().isa; }
  DType dtype() const { return GetParam().dtype; }
  bool on_card() const { return testing::is_card(isa()); }
  std::unique_ptr<Backend> make(int threads = 2) const {
    return testing::make_backend(isa(), threads, GetParam().activation_dtype);
  }
  // Codes of 6 bits meet a part of a value by their upper bits alone.
  bool is_of_level_words() const {
    return has_float_levels(dtype()) && GetParam().activation_dtype == ActivationDType::kInt16;
  }
  // They are bytes there.
  bool is_of_level_bytes() const {
    return has_float_levels(dtype()) && GetParam().activation_dtype == ActivationDType::kInt12;
  }
  double tolerance() const {
    if (is_of_level_words()) return 5e-4;
    if (is_of_level_bytes()) return 1.5e-2;
    return GetParam().activation_dtype == ActivationDType::kInt12 && code_bits(dtype()) == 6 ? 1e-2 : 5e-5;
  }
  std::vector<float> seen_on_lattice(const std::vector<float>& x) const {
    const int bits = has_float_levels(dtype()) ? 6 : code_bits(dtype());
    const int most_bits = isa() == "avx2" ? 4 : 6;
    if (bits > most_bits) return rounded(x, 32, 32767.0f);  // there is none for such codes
    if (isa() == "avx2") return on_lattice(x, kSmallSums, steps_of_a_scale(dtype()));
    return on_lattice(x, bits > 4 ? kWholeSumsOfFiveBits : kWholeSums, steps_of_a_scale(dtype()));
  }
  // The rows that the product is of, num_rows of them.
  std::vector<float> as_seen(const std::vector<float>& x, int64_t num_rows) const {
    // A card rounds many rows as its weights are.
    if (on_card() && num_rows > 1 && dtype() == DType::kBF16) return as_bfloat16(x);
    if (on_card() && num_rows > 1 && dtype() == DType::kF16) return as_half(x);
    switch (GetParam().activation_dtype) {
      case ActivationDType::kInt8:
        return rounded(x, 16, 127.0f);
      case ActivationDType::kInt12:
        return seen_on_lattice(x);
      case ActivationDType::kInt16:
        return rounded(x, 32, has_float_levels(dtype()) ? 8191.0f : 32767.0f);
      case ActivationDType::kBFloat16:
        return as_bfloat16(x);
      case ActivationDType::kAuto:  // of BF16 alone
      case ActivationDType::kFloat32:
        return x;
    }
    return x;
  }
};

#define QUIRE_LINEAR_BACKEND_OR_SKIP(name) \
  auto name = make();                      \
  if (name == nullptr) GTEST_SKIP() << "this machine lacks " << isa()
#define QUIRE_SKIP_ON_CARD(why) \
  if (on_card()) GTEST_SKIP() << (why)

// The weight as floats and products with it in double precision.
class Oracle {
 public:
  Oracle(const StoredWeights& stored, int64_t n, int64_t k)
      : n_(n), k_(k), values_(testing::values_of(stored.view())) {}
  std::vector<float> product(const std::vector<float>& x, int64_t rows, const float* bias) const {
    std::vector<float> out;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < n_; ++column) {
        double sum = bias == nullptr ? 0.0 : bias[column];
        for (int64_t i = 0; i < k_; ++i)
          sum += double{x[static_cast<size_t>(row * k_ + i)]} * double{values_[static_cast<size_t>(column * k_ + i)]};
        out.push_back(static_cast<float>(sum));
      }
    }
    return out;
  }

 private:
  int64_t n_;
  int64_t k_;
  std::vector<float> values_;
};

TEST_P(LinearTest, AgreesWithTheReferenceOverShapes) {
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  Random random(1);
  const int64_t step = info(dtype()).block_values;
  const std::vector<int64_t> ks = step == 1    ? std::vector<int64_t>{1, 7, 64, 255, 577}
                                  : step == 32 ? std::vector<int64_t>{32, 64, 288, 576, 1536}
                                               : std::vector<int64_t>{256, 512, 1536};
  for (const int64_t k : ks) {
    for (const int64_t n : {1, 15, 16, 17, 40, 96}) {
      const StoredWeights stored(dtype(), n, k, random);
      const auto weight = packed(*backend, {stored.view()});
      const Oracle oracle(stored, n, k);
      const std::vector<float> bias = random.normals(n);
      for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 13, 32}) {
        const std::vector<float> x = random.normals(rows * k);
        const float* maybe_bias = rows % 2 == 0 ? bias.data() : nullptr;
        EXPECT_LT(largest_difference(product(*backend, *weight, x, 0, rows, maybe_bias),
                                     oracle.product(as_seen(x, rows), rows, maybe_bias)),
                  tolerance())
            << "k " << k << ", n " << n << ", rows " << rows;
      }
    }
  }
}

TEST_P(LinearTest, GatedItIsTheProductThenTheActivationToTheBit) {
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  Random random(8);
  const int64_t k = std::max<int64_t>(info(dtype()).block_values, 128);
  for (const int64_t size : {1, 3, 24, 70}) {
    const StoredWeights stored(dtype(), 2 * size, k, random);
    const auto weight = packed(*backend, {stored.view()});
    const std::vector<float> bias = random.normals(2 * size);
    for (const int64_t rows : {1, 2, 3, 8, 13, 70}) {
      const auto function = rows % 2 == 0 ? Activation::kSilu : Activation::kGeluTanh;
      const std::vector<float> x = random.normals(rows * k);
      const float* maybe_bias = rows % 3 == 0 ? bias.data() : nullptr;
      std::vector<float> products = product(*backend, *weight, x, 0, rows, maybe_bias);
      std::vector<float> expected(static_cast<size_t>(rows * size));
      (*backend)(ActivationArgs{
          .function = function, .in = products.data(), .num_tokens = rows, .size = size, .out = expected.data()});
      std::vector<float> got(expected.size());
      (*backend)(GatedLinearArgs{.product = {.x = x.data(),
                                             .x_stride = k,
                                             .num_rows = rows,
                                             .weight = weight.get(),
                                             .bias = maybe_bias,
                                             .out = products.data(),
                                             .out_stride = 2 * size},
                                 .function = function,
                                 .out = got.data()});
      // cuBLASLt may choose another kernel, and order of sums, for rows that lie otherwise in memory.
      if (on_card() && rows > 1) {
        EXPECT_LT(largest_difference(got, expected), 1e-5) << "size " << size << ", rows " << rows;
        continue;
      }
      EXPECT_TRUE(same_bits(got.data(), expected.data(), rows * size)) << "size " << size << ", rows " << rows;
    }
  }
}

// Activations of one magnitude are whole multiples of their step: rounding then loses nothing, and large codes meet the
// largest numbers, so that sums of 16 bits would show if they ran over.
TEST_P(LinearTest, ActivationsOfOneMagnitudeAreExactUpToFloatRounding) {
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  Random random(2);
  const int64_t k = 512;
  const StoredWeights stored(dtype(), 48, k, random);
  const auto weight = packed(*backend, {stored.view()});
  const Oracle oracle(stored, 48, k);
  for (const bool alternating : {false, true}) {
    std::vector<float> x(static_cast<size_t>(k), -3.0f);
    for (size_t i = 0; alternating && i < x.size(); ++i) x[i] = random.between(0, 1) == 0 ? 3.0f : -3.0f;
    for (const int64_t rows : {1, 7}) {  // few and many are read differently
      std::vector<float> same;
      for (int64_t row = 0; row < rows; ++row) same.insert(same.end(), x.begin(), x.end());
      EXPECT_LT(
          largest_difference(product(*backend, *weight, same, 0, rows, nullptr), oracle.product(same, rows, nullptr)),
          is_of_level_words()   ? 2e-3
          : is_of_level_bytes() ? 5e-2
                                : 5e-5)
          << "rows " << rows;
    }
  }
}

TEST_P(LinearTest, ARowOfZerosOrOfTinyNumbersGivesNothingAndNanSpoilsItsRowAlone) {
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  Random random(6);
  const int64_t k = 256;
  const StoredWeights stored(dtype(), 20, k, random);
  const auto weight = packed(*backend, {stored.view()});
  std::vector<float> x = random.normals(4 * k);
  std::fill_n(x.begin(), k, 0.0f);
  std::fill_n(x.begin() + k, k, 1e-42f);
  const std::vector<float> before = product(*backend, *weight, x, 0, 4, nullptr);
  for (size_t i = 0; i < 40; ++i) EXPECT_NEAR(before[i], 0.0f, 1e-30f);
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[static_cast<size_t>(2 * k + 77)] = wrong;
    const std::vector<float> after = product(*backend, *weight, x, 0, 4, nullptr);
    EXPECT_TRUE(same_bits(after.data(), before.data(), 40));
    EXPECT_TRUE(same_bits(after.data() + 60, before.data() + 60, 20));
    for (size_t i = 40; i < 60; ++i) EXPECT_FALSE(std::isfinite(after[i])) << after[i];
  }
}

TEST_P(LinearTest, GivesARowTheSameBitsAloneAndAmongOthers) {
  QUIRE_SKIP_ON_CARD("many rows are another kernel's than few");
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const int64_t step = info(dtype()).block_values;
  for (int round = 0; round < 6; ++round) {
    const int64_t k = step * random.between(1, step == 1 ? 900 : 1280 / step);
    const int64_t n = random.between(1, 150);
    const int64_t rows = random.between(2, 260);
    SCOPED_TRACE(::testing::Message() << "k " << k << ", n " << n << ", rows " << rows);
    const StoredWeights stored(dtype(), n, k, random);
    const auto weight = packed(*backend, {stored.view()});
    const std::vector<float> bias = random.normals(n);
    const std::vector<float> x = random.normals(rows * k);
    const std::vector<float> all = product(*backend, *weight, x, 0, rows, bias.data());
    for (int64_t first = 0; first < rows;) {
      const int64_t count = std::min(rows - first, random.between(1, 9));
      const std::vector<float> some = product(*backend, *weight, x, first, count, bias.data());
      ASSERT_TRUE(same_bits(some.data(), all.data() + first * n, count * n))
          << "rows " << first << " to " << first + count;
      first += count;
    }
  }
}

// Wide enough for several stretches of a tile in scratch, at every count at which rows are grouped differently.
TEST_P(LinearTest, GivesARowTheSameBitsInAnyCountOfRows) {
  QUIRE_SKIP_ON_CARD("many rows are another kernel's than few");
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  Random random(9);
  const int64_t k = 2304;
  const int64_t n = 40;
  const int64_t most = 14;
  const StoredWeights stored(dtype(), n, k, random);
  const auto weight = packed(*backend, {stored.view()});
  const std::vector<float> bias = random.normals(n);
  const std::vector<float> x = random.normals(most * k);
  std::vector<float> alone;
  for (int64_t row = 0; row < most; ++row) {
    const std::vector<float> one = product(*backend, *weight, x, row, 1, bias.data());
    alone.insert(alone.end(), one.begin(), one.end());
  }
  for (int64_t rows = 2; rows <= most; ++rows) {
    const std::vector<float> all = product(*backend, *weight, x, 0, rows, bias.data());
    EXPECT_TRUE(same_bits(all.data(), alone.data(), rows * n)) << "rows " << rows;
  }
}

TEST_P(LinearTest, GivesTheSameBitsOnAnyNumberOfThreads) {
  QUIRE_SKIP_ON_CARD("it has no threads to choose");
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  auto alone = make(1);
  auto many = make(5);
  Random random(3);
  const StoredWeights stored(dtype(), 333, 256, random);
  const std::vector<float> x = random.normals(50 * 256);
  for (const int64_t rows : {1, 50}) {
    const auto expected = product(*alone, *packed(*alone, {stored.view()}), x, 0, rows, nullptr);
    EXPECT_EQ(product(*backend, *packed(*backend, {stored.view()}), x, 0, rows, nullptr), expected);
    EXPECT_EQ(product(*many, *packed(*many, {stored.view()}), x, 0, rows, nullptr), expected);
  }
}

TEST_P(LinearTest, StacksPartsInOrder) {
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  Random random(4);
  const int64_t k = 256;
  const StoredWeights first(dtype(), 21, k, random);
  const StoredWeights second(dtype(), 7, k, random);
  const StoredWeights third(dtype(), 30, k, random);
  const auto stacked = packed(*backend, {first.view(), second.view(), third.view()});
  const std::vector<float> x = random.normals(k);
  std::vector<float> expected;
  for (const StoredWeights* part : {&first, &second, &third}) {
    const auto out = product(*backend, *packed(*backend, {part->view()}), x, 0, 1, nullptr);
    expected.insert(expected.end(), out.begin(), out.end());
  }
  EXPECT_EQ(stacked->rows(), 58);
  EXPECT_EQ(product(*backend, *stacked, x, 0, 1, nullptr), expected);
}

TEST_P(LinearTest, TellsTruthfullyHowManyBytesAPackedWeightTakes) {
  QUIRE_LINEAR_BACKEND_OR_SKIP(backend);
  Random random(5);
  for (const int64_t n : {1, 32, 50}) {
    const StoredWeights stored(dtype(), n, 1280, random);
    const auto weight = packed(*backend, {stored.view()});
    EXPECT_EQ(weight->bytes(), backend->packed_bytes(dtype(), n, 1280));
    EXPECT_EQ(weight->dtype(), dtype());
    EXPECT_EQ(weight->columns(), 1280);
    if (on_card()) continue;  // the format of panels
    if (const auto bytes = packed_bytes_of_256(dtype()); bytes && n % 32 == 0) {
      EXPECT_EQ(weight->bytes(), n * 1280 / 256 * *bytes);
    } else if (has_row_scales(dtype()) && n % 32 == 0) {
      EXPECT_EQ(weight->bytes(), n * quantised_row_bytes(dtype(), 1280));
    } else if (n % 32 == 0) {
      EXPECT_GE(weight->bytes(), stored.view().bytes());
      EXPECT_LE(weight->bytes(), stored.view().bytes() * 104 / 100);  // small scales of 6 bits take 8
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearTest, ::testing::ValuesIn(linear_cases()), [](const auto& test) {
  return test.param.isa + "_" + std::string(name(test.param.dtype)) + "_" +
         std::string(activation_name(test.param.activation_dtype));
});

class LinearIsaTest : public ::testing::TestWithParam<std::string> {};

// The weight of one block read back through a product with unit vectors: exactly its values.
TEST_P(LinearIsaTest, ReadsHandMadeBlocksExactly) {
  auto backend = testing::make_backend(GetParam(), 2, ActivationDType::kFloat32);
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  struct Case {
    DType dtype;
    uint16_t d;
    uint16_t m;
  };
  const uint16_t smallest_denormal = 0x0001;  // 2^-24
  const uint16_t largest_denormal = 0x83ff;   // -(1023 * 2^-24)
  const uint16_t one_and_a_half = 0x3e00;
  const uint16_t largest = 0x7bff;  // 65504
  for (const Case& c : std::vector<Case>{{DType::kQ4_0, one_and_a_half, 0},
                                         {DType::kQ4_0, smallest_denormal, 0},
                                         {DType::kQ4_0, largest, 0},
                                         {DType::kQ4_1, one_and_a_half, largest_denormal},
                                         {DType::kQ4_1, largest_denormal, smallest_denormal},
                                         {DType::kQ4_1, 0, one_and_a_half},
                                         {DType::kQ8_0, one_and_a_half, 0},
                                         {DType::kQ8_0, largest_denormal, 0}}) {
    const auto value_of = [](uint16_t bits) {
      if (bits == 0x3e00) return 1.5f;
      if (bits == 0x7bff) return 65504.0f;
      if (bits == 0x83ff) return -1023.0f * 0x1p-24f;
      return static_cast<float>(bits) * 0x1p-24f;
    };
    std::vector<uint8_t> block;
    const auto put_half = [&block](uint16_t bits) {
      block.push_back(static_cast<uint8_t>(bits & 0xff));
      block.push_back(static_cast<uint8_t>(bits >> 8));
    };
    put_half(c.d);
    if (c.dtype == DType::kQ4_1) put_half(c.m);
    std::vector<float> expected(32);
    for (int i = 0; i < 32; ++i) {
      if (c.dtype == DType::kQ8_0) {
        const auto q = static_cast<int8_t>(i == 0 ? -128 : i == 1 ? 127 : 9 * i - 140);
        block.push_back(static_cast<uint8_t>(q));
        expected[static_cast<size_t>(i)] = value_of(c.d) * static_cast<float>(q);
      } else if (i < 16) {
        // Value i is 15 - i, value i + 16 is i: each half of each byte takes every value.
        block.push_back(static_cast<uint8_t>((15 - i) | (i << 4)));
        const float shift = c.dtype == DType::kQ4_0 ? -8.0f : 0.0f;
        const float m = c.dtype == DType::kQ4_1 ? value_of(c.m) : 0.0f;
        expected[static_cast<size_t>(i)] = value_of(c.d) * (static_cast<float>(15 - i) + shift) + m;
        expected[static_cast<size_t>(i) + 16] = value_of(c.d) * (static_cast<float>(i) + shift) + m;
      }
    }
    SCOPED_TRACE(::testing::Message() << name(c.dtype) << " d " << c.d << " m " << c.m);

    std::vector<float> identity(32 * 32);
    for (size_t i = 0; i < 32; ++i) identity[i * 32 + i] = 1.0f;
    const auto weight = packed(*backend, {TensorView{block.data(), c.dtype, Shape{1, 32}}});
    EXPECT_EQ(product(*backend, *weight, identity, 0, 32, nullptr), expected);
    EXPECT_EQ(product(*backend, *weight, identity, 3, 1, nullptr)[0], expected[3]);

    std::vector<float> row(32);
    const TokenId id = 0;
    EmbeddingArgs embedding;
    embedding.ids = &id;
    embedding.num_tokens = 1;
    embedding.table = TensorView{block.data(), c.dtype, Shape{1, 32}};
    embedding.out = row.data();
    (*backend)(embedding);
    EXPECT_EQ(row, expected);
    auto reference = make_reference_backend();
    (*reference)(embedding);
    EXPECT_EQ(row, expected);
  }
}

TEST_P(LinearIsaTest, RefusesAQuantisedWeightTooWideForARowOfRoundedActivations) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const int64_t columns = int64_t{1} << 21;
  const std::vector<uint8_t> row(static_cast<size_t>(row_bytes(DType::kQ4_0, columns)));
  const TensorView view{row.data(), DType::kQ4_0, Shape{1, columns}};
  const auto weight = backend->pack(std::span(&view, 1));
  ASSERT_FALSE(weight.ok());
  EXPECT_EQ(weight.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(weight.status().message(), ::testing::HasSubstr("2097152 columns"));
}

TEST_P(LinearIsaTest, RefusesAWeightOfIntegers) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const std::vector<int32_t> values(64);
  const TensorView view{values.data(), DType::kI32, Shape{2, 32}};
  for (Backend* each : {backend.get(), make_reference_backend().release()}) {
    const auto weight = each->pack(std::span(&view, 1));
    ASSERT_FALSE(weight.ok());
    EXPECT_EQ(weight.status().code(), StatusCode::kUnimplemented);
    EXPECT_THAT(weight.status().message(), ::testing::HasSubstr("I32"));
    if (each != backend.get()) delete each;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, LinearIsaTest, ::testing::ValuesIn(kCpuIsas),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops
