#include "tests/ops/ops_test_support.h"

#include <array>
#include <cmath>
#include <limits>

#include "ops/cpu/cpu_backend.h"
#include "ops/reference/rounded_rows.h"

namespace quire::ops::testing {

std::unique_ptr<Backend> make_backend(const std::string& isa, int threads, ActivationDType activation_dtype) {
  if (is_card(isa))
    return quire::cards::make_card(threads, {.rounds_activations = activation_dtype == ActivationDType::kAuto});
  auto backend = make_cpu_backend(
      {.threads = threads, .isa = parse_choice<Isa>(isa).value(), .activation_dtype = activation_dtype});
  if (backend.ok()) return std::move(backend).value();
  QUIRE_CHECK_MSG(backend.status().code() == StatusCode::kUnavailable, backend.status().message());
  return nullptr;
}

namespace {

constexpr int kQuantileBits = 12;
constexpr float kLargestNormal = 4.5f;  // what is beyond, one in 150,000, lies before it

// Below number i lie i of 2^kQuantileBits parts of a normal distribution.
std::array<float, (1 << kQuantileBits) + 1> make_quantiles() {
  constexpr int kParts = 1 << kQuantileBits;
  std::array<float, kParts + 1> quantiles;
  for (int i = 1; i < kParts; ++i) {
    double low = -kLargestNormal;
    double high = kLargestNormal;
    for (int halving = 0; halving < 32; ++halving) {
      const double middle = (low + high) / 2;
      (std::erfc(-middle / std::sqrt(2.0)) / 2 * kParts < i ? low : high) = middle;
    }
    quantiles[static_cast<size_t>(i)] = static_cast<float>(low);
  }
  quantiles.front() = -kLargestNormal;
  quantiles.back() = kLargestNormal;
  return quantiles;
}

}  // namespace

float normal_of(uint64_t bits) {
  static const auto kQuantiles = make_quantiles();
  const float* low = &kQuantiles[bits >> (64 - kQuantileBits)];
  const auto between = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
  return low[0] + between * (low[1] - low[0]);
}

uint16_t half_bits(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) {  // denormal: units of 2^-24
    return static_cast<uint16_t>(sign | std::lrint(std::ldexp(magnitude, 24)));
  }
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);                    // [0.5, 1)
  const auto units = static_cast<int>(std::lrint(std::ldexp(fraction, 11)));  // [1024, 2048]
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + (units - 1024)));
}

namespace {

// Where a block of codes has its f16 scales, and how large the codes they scale are on the average.
struct BlockScales {
  int32_t scale_at;
  float codes;
  int32_t minimum_at = -1;  // none
  float minimum_codes = 1;
};

BlockScales scales_of(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return {0, 5};
    case DType::kQ4_1:
      return {0, 5, 2};
    case DType::kQ8_0:
      return {0, 64};
    case DType::kQ5_0:
      return {0, 10};
    case DType::kQ5_1:
      return {0, 10, 2};
    case DType::kQ2_K:
      return {80, 16, 82, 9};
    case DType::kQ3_K:
      return {108, 42};
    case DType::kQ4_K:
      return {0, 320, 2, 36};
    case DType::kQ5_K:
      return {0, 650, 2, 36};
    case DType::kQ6_K:
      return {208, 1370};
    case DType::kIQ4_NL:
      return {0, 69};
    case DType::kIQ4_XS:
      return {0, 1260};
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
      return {0, 50};
    case DType::kIQ3_XXS:
      return {0, 120};
    case DType::kIQ3_S:
      return {0, 128};
    case DType::kIQ1_S:
      return {0, 6};
    case DType::kTQ1_0:
      return {52, 1};
    case DType::kTQ2_0:
      return {64, 1};
    default:
      check_failed("a format of blocks", __FILE__, __LINE__, name(dtype));
  }
}

// Codes of 8-bit floats are some 128 in size.
void put_scaled_row(DType dtype, int64_t columns, float deviation, Random& random, uint8_t* at) {
  for (int64_t i = 0; i < columns; ++i)
    *at++ = static_cast<uint8_t>(random.between(0, 1) << 7 | random.between(0, 0x7e));
  for (int64_t i = 0; i < row_scales(dtype, columns); ++i) {
    const float scale = random.normal(deviation) / 128;
    std::memcpy(at, &scale, sizeof(scale));
    at += sizeof(scale);
  }
}

}  // namespace

StoredWeights::StoredWeights(DType dtype, int64_t rows, int64_t columns, Random& random)
    : dtype_(dtype), rows_(rows), columns_(columns) {
  const DTypeInfo format = info(dtype);
  const int64_t row_size = quantised_row_bytes(dtype, columns);
  bytes_.resize(static_cast<size_t>(2 + rows * row_size));
  uint8_t* at = bytes_.data() + 2;
  const auto put = [&at](const auto& value) {
    std::memcpy(at, &value, sizeof(value));
    at += sizeof(value);
  };
  const int64_t blocks = rows * columns / format.block_values;
  const float deviation = 1.0f / std::sqrt(static_cast<float>(columns));
  if (has_row_scales(dtype)) {
    for (int64_t row = 0; row < rows; ++row) put_scaled_row(dtype, columns, deviation, random, at + row * row_size);
    return;
  }
  for (int64_t block = 0; block < blocks; ++block) {
    const float value = random.normal(deviation);
    if (const CodedBlock layout = coded_block(dtype); layout.head_bytes > 0) {
      const bool are_levels = dtype == DType::kNF4 || dtype == DType::kFP4;
      const float d = are_levels ? value : value / (layout.bits == 8 ? 64.0f : 5.0f);
      if (layout.head_bytes == 2) put(half_bits(d));
      if (layout.head_bytes == 4) put(d);
      if (layout.fractions) {
        const float zero = static_cast<float>(random.between(0, 128)) / (layout.bits == 8 ? 0.5f : 8.0f);
        if (layout.zero_bytes == 2) put(half_bits(zero));
        if (layout.zero_bytes == 4) put(zero + 0.1f);
        for (int i = 0; i < format.block_values * layout.bits / 8; ++i)
          put(static_cast<uint8_t>(random.between(0, 255)));
        continue;
      }
      if (layout.zero_bytes == 1) put(static_cast<uint8_t>(random.between(0, 16)));
      if (layout.zero_bytes == 2) put(static_cast<int16_t>(random.between(-128, 128)));
      for (int i = 0; i < format.block_values * layout.bits / 8; ++i) put(static_cast<uint8_t>(random.between(0, 255)));
      continue;
    }
    switch (dtype) {
      case DType::kF32:
        put(value);
        break;
      case DType::kF16:
        put(half_bits(value));
        break;
      case DType::kBF16: {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        put(static_cast<uint16_t>(bits >> 16));
        break;
      }
      case DType::kMXFP4:
        // The exponent that brings levels of 4 on the average to the deviation.
        put(static_cast<uint8_t>(126 + std::ilogb(deviation) + random.between(-1, 1)));
        for (int i = 0; i < 16; ++i) put(static_cast<uint8_t>(random.between(0, 255)));
        break;
      case DType::kIQ1_M: {
        for (int i = 0; i < 48; ++i) put(static_cast<uint8_t>(random.between(0, 255)));
        const uint16_t scale = half_bits(value / 6);  // four bits a word
        for (int i = 0; i < 4; ++i)
          put(static_cast<uint16_t>(random.between(0, 0xfff) | (scale >> (4 * i) & 0x0f) << 12));
        break;
      }
      case DType::kNVFP4:
        // Exponents that bring halves of levels of 4 on the average to the deviation; the sign counts for nothing.
        for (int i = 0; i < 4; ++i) {
          const int64_t exponent = std::max<int64_t>(6 + std::ilogb(deviation) + random.between(-1, 1), 0);
          put(static_cast<uint8_t>(random.between(0, 1) << 7 | exponent << 3 | random.between(0, 7)));
        }
        for (int i = 0; i < 32; ++i) put(static_cast<uint8_t>(random.between(0, 255)));
        break;
      case DType::kQ8_K:
        put(value / 64);
        for (int i = 0; i < 288; ++i) put(static_cast<uint8_t>(random.between(0, 255)));
        break;
      default: {
        const BlockScales scales = scales_of(dtype);
        const uint16_t scale = half_bits(value / scales.codes);
        const bool has_minimum = scales.minimum_at >= 0;
        const uint16_t minimum = has_minimum ? half_bits(random.normal(deviation) / scales.minimum_codes) : uint16_t{0};
        for (int32_t i = 0; i < format.block_bytes;) {
          if (i == scales.scale_at || i == scales.minimum_at) {
            put(i == scales.scale_at ? scale : minimum);
            i += 2;
          } else {
            put(static_cast<uint8_t>(random.between(0, 255)));
            ++i;
          }
        }
      }
    }
  }
}

TensorView StoredWeights::view() const {
  return {bytes_.data() + 2, dtype_, Shape{rows_, columns_}};
}

std::vector<float> values_of(const TensorView& stored) {
  const int64_t columns = stored.shape[1];
  std::vector<float> values;
  for (int64_t row = 0; row < stored.shape[0]; ++row) {
    const auto* at = static_cast<const uint8_t*>(stored.data) + row * quantised_row_bytes(stored.dtype, columns);
    for (int64_t i = 0; i < columns; ++i) values.push_back(reference::row_value(stored.dtype, at, columns, i));
  }
  return values;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference =
        std::fabs(static_cast<double>(a[i]) - b[i]) / (1.0 + std::fabs(static_cast<double>(b[i])));
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace quire::ops::testing
