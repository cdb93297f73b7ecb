// Keys and values into the cache's format and back to floats: see ops/kv_cache.h.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/kv_formats.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

// Numbers narrowed at once, on their way to the cache.
constexpr int64_t kChunk = 64;

// `size` floats, eight at a time (the last ones padded), by narrow_eight(F8, Code*), to out, `stride` codes apart.
template <typename Code, typename NarrowEight>
QUIRE_INLINE void narrow_vector(const float* in, int64_t size, int64_t stride, uint8_t* out,
                                const NarrowEight& narrow_eight) {
  for (int64_t begin = 0; begin < size; begin += kChunk) {
    const int64_t count = size - begin < kChunk ? size - begin : kChunk;
    Code codes[kChunk];
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) narrow_eight(load(in + begin + i), codes + i);
    if (i < count) {
      float padded[kLanes] = {};
      std::memcpy(padded, in + begin + i, static_cast<size_t>(count - i) * sizeof(float));
      narrow_eight(load(padded), codes + i);
    }
    uint8_t* to = out + begin * stride * static_cast<int64_t>(sizeof(Code));
    if (stride == 1) {
      std::memcpy(to, codes, static_cast<size_t>(count) * sizeof(Code));
    } else {
      for (i = 0; i < count; ++i) {
        std::memcpy(to + i * stride * static_cast<int64_t>(sizeof(Code)), codes + i, sizeof(Code));
      }
    }
  }
}

// Magnitudes compare as whole numbers do, and infinity and NaN lie above all others.
QUIRE_INLINE int32_t largest_magnitude_bits(const float* in, int64_t size) {
  I8 highest{};
  const auto take = [&highest](F8 x) {
    const I8 magnitude = (I8)x & 0x7fffffff;
    highest = magnitude > highest ? magnitude : highest;
  };
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) take(load(in + i));
  float padded[kLanes] = {};
  std::memcpy(padded, in + i, static_cast<size_t>(size - i) * sizeof(float));
  take(load(padded));
  int32_t result = 0;
  for (int lane = 0; lane < kLanes; ++lane) result = highest[lane] > result ? highest[lane] : result;
  return result;
}

void narrow_int8(const float* in, int64_t size, int64_t stride, uint8_t* numbers, uint8_t* scale_out) {
  const int32_t bits = largest_magnitude_bits(in, size);
  float largest;
  std::memcpy(&largest, &bits, sizeof(largest));
  const bool finite = bits < 0x7f800000;
  const float scale = finite ? largest / 127.0f : __builtin_nanf("");
  std::memcpy(scale_out, &scale, sizeof(scale));
  const bool zeros = !finite || scale == 0;
  narrow_vector<int8_t>(in, size, stride, numbers, [&](F8 x, int8_t* out) {
    const F8 shifter = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    const F8 quotient = zeros ? zero() : max(broadcast(-127.0f), min(broadcast(127.0f), x / scale));
    store_narrowed((I8)(quotient + shifter) - (I8)shifter, out);
  });
}

void narrow(DType dtype, const float* in, int64_t size, int64_t stride, uint8_t* out) {
  switch (dtype) {
    case DType::kF16:
      narrow_vector<uint16_t>(in, size, stride, out, [](F8 x, uint16_t* to) { store_half(x, to); });
      break;
    case DType::kBF16:
      narrow_vector<uint16_t>(in, size, stride, out, [](F8 x, uint16_t* to) { store_bfloat16(x, to); });
      break;
    case DType::kF8E4M3:
      narrow_vector<uint8_t>(in, size, stride, out, [](F8 x, uint8_t* to) { store_f8e4m3(x, to); });
      break;
    case DType::kF8E5M2:
      narrow_vector<uint8_t>(in, size, stride, out, [](F8 x, uint8_t* to) { store_f8e5m2(x, to); });
      break;
    default:
      if (stride == 1) {
        std::memcpy(out, in, static_cast<size_t>(size) * sizeof(float));
        break;
      }
      for (int64_t i = 0; i < size; ++i, out += stride * static_cast<int64_t>(sizeof(float))) {
        std::memcpy(out, in + i, sizeof(float));
      }
      break;
  }
}

}  // namespace

// Without values the keys alone are kept: they are both.
void kv_write(const KvWrite& write) {
  const int64_t head_dim = write.head_dim;
  const int64_t block_size = write.block_size;
  if (write.dtype == DType::kI8) {
    const int64_t scale = head_dim * block_size + write.token * static_cast<int64_t>(sizeof(float));
    narrow_int8(write.key, head_dim, block_size, write.keys + write.token, write.keys + scale);
    if (write.values == nullptr) return;
    narrow_int8(write.value, head_dim, 1, write.values + write.token * head_dim, write.values + scale);
    return;
  }
  const int64_t bytes = row_bytes(write.dtype, 1);
  narrow(write.dtype, write.key, head_dim, block_size, write.keys + write.token * bytes);
  if (write.values == nullptr) return;
  narrow(write.dtype, write.value, head_dim, 1, write.values + write.token * head_dim * bytes);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
