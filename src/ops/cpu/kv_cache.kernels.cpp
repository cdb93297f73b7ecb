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
    store_codes((I8)(quotient + shifter) - (I8)shifter, out);
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
      narrow_vector<float>(in, size, stride, out, [](F8 x, float* to) { store(to, x); });
      break;
  }
}

// `count` codes of kBytes each to floats; the last ones through a padded copy.
template <int kBytes, F8 (*kLoad)(const uint8_t*)>
void widen_run(const uint8_t* in, int64_t count, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(out + i, kLoad(in + i * kBytes));
  if (i == count) return;
  uint8_t padded[kLanes * kBytes] = {};
  std::memcpy(padded, in + i * kBytes, static_cast<size_t>(count - i) * kBytes);
  const F8 last = kLoad(padded);
  for (int lane = 0; i < count; ++i, ++lane) out[i] = last[lane];
}

struct Widen {
  void (*run)(const uint8_t* in, int64_t count, float* out);
  int64_t bytes;  // of a code
};

QUIRE_INLINE Widen widen_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {widen_run<2, load_half>, 2};
    case DType::kBF16:
      return {widen_run<2, load_bfloat16>, 2};
    case DType::kF8E4M3:
      return {widen_run<1, load_f8e4m3>, 1};
    case DType::kF8E5M2:
      return {widen_run<1, load_f8e5m2>, 1};
    case DType::kI8:
      return {widen_run<1, load_int8>, 1};
    default:
      return {widen_run<4, load_float>, 4};
  }
}

QUIRE_INLINE float scale_at(const KvPage& page, int64_t token) {
  float scale;
  std::memcpy(&scale, page.head + page.head_dim * page.block_size + token * static_cast<int64_t>(sizeof(float)),
              sizeof(scale));
  return scale;
}

// Keys of I8: a row of them times the row of scales.
void widen_int8_keys(const KvPage& page, int64_t out_stride, float* out) {
  const uint8_t* in = page.head + page.first;
  const uint8_t* scales =
      page.head + page.head_dim * page.block_size + page.first * static_cast<int64_t>(sizeof(float));
  for (int64_t d = 0; d < page.head_dim; ++d, in += page.block_size, out += out_stride) {
    int64_t t = 0;
    for (; t + kLanes <= page.count; t += kLanes) {
      store(out + t, load_int8(in + t) * load_float(scales + t * static_cast<int64_t>(sizeof(float))));
    }
    for (; t < page.count; ++t) {
      out[t] = static_cast<float>(static_cast<int8_t>(in[t])) * scale_at(page, page.first + t);
    }
  }
}

// Values of I8: a token's row of them times its scale.
void widen_int8_values(const KvPage& page, float* out) {
  const uint8_t* in = page.head + page.first * page.head_dim;
  for (int64_t t = 0; t < page.count; ++t, in += page.head_dim, out += page.head_dim) {
    const float scale = scale_at(page, page.first + t);
    int64_t d = 0;
    for (; d + kLanes <= page.head_dim; d += kLanes) store(out + d, load_int8(in + d) * scale);
    for (; d < page.head_dim; ++d) out[d] = static_cast<float>(static_cast<int8_t>(in[d])) * scale;
  }
}

}  // namespace

void kv_write(const KvWrite& write) {
  const int64_t head_dim = write.head_dim;
  const int64_t block_size = write.block_size;
  if (write.dtype == DType::kI8) {
    const int64_t scale = head_dim * block_size + write.token * static_cast<int64_t>(sizeof(float));
    narrow_int8(write.key, head_dim, block_size, write.keys + write.token, write.keys + scale);
    narrow_int8(write.value, head_dim, 1, write.values + write.token * head_dim, write.values + scale);
    return;
  }
  const int64_t bytes = widen_of(write.dtype).bytes;
  narrow(write.dtype, write.key, head_dim, block_size, write.keys + write.token * bytes);
  narrow(write.dtype, write.value, head_dim, 1, write.values + write.token * head_dim * bytes);
}

void widen_keys(const KvPage& page, int64_t out_stride, float* out) {
  if (page.dtype == DType::kI8) return widen_int8_keys(page, out_stride, out);
  const Widen widen = widen_of(page.dtype);
  const uint8_t* in = page.head + page.first * widen.bytes;
  if (page.count == page.block_size && out_stride == page.block_size) {
    widen.run(in, page.head_dim * page.block_size, out);
    return;
  }
  for (int64_t d = 0; d < page.head_dim; ++d) {
    widen.run(in + d * page.block_size * widen.bytes, page.count, out + d * out_stride);
  }
}

void widen_values(const KvPage& page, float* out) {
  if (page.dtype == DType::kI8) return widen_int8_values(page, out);
  const Widen widen = widen_of(page.dtype);
  widen.run(page.head + page.first * page.head_dim * widen.bytes, page.count * page.head_dim, out);
}

}  // namespace quire::ops::cpu::QUIRE_ISA
