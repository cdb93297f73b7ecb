#include "tests/ops/ops_test_support.h"

#include <cmath>
#include <limits>

#include "ops/cpu/cpu_backend.h"

namespace quire::ops::testing {

std::unique_ptr<Backend> make_backend(const std::string& isa, int threads) {
  auto backend = make_cpu_backend({.threads = threads, .isa = isa});
  if (backend.ok()) return std::move(backend).value();
  QUIRE_CHECK_MSG(backend.status().code() == StatusCode::kUnavailable, backend.status().message());
  return nullptr;
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

StoredWeights::StoredWeights(DType dtype, int64_t rows, int64_t columns, Random& random)
    : dtype_(dtype), rows_(rows), columns_(columns) {
  const DTypeInfo format = info(dtype);
  bytes_.resize(static_cast<size_t>(2 + rows * row_bytes(dtype, columns)));
  uint8_t* at = bytes_.data() + 2;
  const auto put = [&at](const auto& value) {
    std::memcpy(at, &value, sizeof(value));
    at += sizeof(value);
  };
  const int64_t blocks = rows * columns / format.block_values;
  const float deviation = 1.0f / std::sqrt(static_cast<float>(columns));
  for (int64_t block = 0; block < blocks; ++block) {
    const float value = random.normal(deviation);
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
      default: {
        const float levels = dtype == DType::kQ8_0 ? 64.0f : 5.0f;
        put(half_bits(value / levels));
        if (dtype == DType::kQ4_1) put(half_bits(random.normal(deviation)));
        const int quants = dtype == DType::kQ8_0 ? 32 : 16;
        for (int i = 0; i < quants; ++i) put(static_cast<uint8_t>(random.between(0, 255)));
      }
    }
  }
}

TensorView StoredWeights::view() const {
  return {bytes_.data() + 2, dtype_, Shape{rows_, columns_}};
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
