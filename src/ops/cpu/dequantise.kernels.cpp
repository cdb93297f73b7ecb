// Rows as a checkpoint stores them, at any alignment, to floats: the embedding table. The bits are those of
// the reference's stored_value: scales times codes are whole in a float, and a sum is rounded once.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/stored_levels.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

QUIRE_INLINE float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return half_to_float(bits);
}

// q * scale: also for a negative scale a q of 0 gives the zero of the product's sign.
QUIRE_INLINE void store_scaled(float* out, I8 q, float scale) {
  store(out, to_float(q) * broadcast(scale));
}
QUIRE_INLINE void store_scaled(float* out, I8 q, float scale, float offset) {
  store(out, to_float(q) * broadcast(scale) + broadcast(offset));
}

// Calls emit(first value, q) for the 32 q of 16 bytes, eight at a time.
template <typename Emit>
QUIRE_INLINE void for_nibbles(const uint8_t* quants, const Emit& emit) {
  for (int at = 0; at < 16; at += kLanes) {
    const I8 bytes = load_unsigned_bytes(quants + at);
    emit(at, bytes & 0x0f);
    emit(16 + at, bytes >> 4);
  }
}

// The 8 bits of a byte as lanes of 0 or 16: q's fifth bit.
QUIRE_INLINE I8 fifth_bits(uint8_t byte) {
  const I8 lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  return (((I8{} + byte) >> lanes) & 1) << 4;
}

// 32 values, each one of 16 levels.
QUIRE_INLINE void level_block(const int8_t (&table)[16], const uint8_t* quants, float scale, float* out) {
  uint8_t levels[32];
  for (int i = 0; i < 16; ++i) {
    levels[i] = static_cast<uint8_t>(table[quants[i] & 0x0f]);
    levels[16 + i] = static_cast<uint8_t>(table[quants[i] >> 4]);
  }
  for (int i = 0; i < 32; i += kLanes) store_scaled(out + i, load_signed_bytes(levels + i), scale);
}

// Scales and minima of the groups of a K block.
struct Groups {
  float scale[16];
  float minimum[16];
};

// Of Q4_K and Q5_K: 8 of each, from the 12 bytes behind d and e. Word 0 has six bits each of s 0..3, word 1 of m 0..3,
// word 2 the lower halves of s and m 4..7, whose upper two bits are those that words 0 and 1 leave.
QUIRE_INLINE void unpack_groups(const uint8_t* block, Groups& groups) {
  const float d = half_at(block);
  const float e = half_at(block + 2);
  const uint8_t* packed = block + 4;
  for (int i = 0; i < 4; ++i) {
    groups.scale[i] = d * static_cast<float>(packed[i] & 0x3f);
    groups.minimum[i] = e * static_cast<float>(packed[4 + i] & 0x3f);
    groups.scale[4 + i] = d * static_cast<float>((packed[8 + i] & 0x0f) | (packed[i] >> 6 << 4));
    groups.minimum[4 + i] = e * static_cast<float>((packed[8 + i] >> 4) | (packed[4 + i] >> 6 << 4));
  }
}

// 16-bit values by vectors, the rest through a padded copy.
template <F8 (*kLoad)(const uint8_t*)>
QUIRE_INLINE void sixteen_bit_row(const uint8_t* row, int64_t size, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, kLoad(row + i * 2));
  if (i == size) return;
  uint8_t padded[kLanes * 2] = {};
  std::memcpy(padded, row + i * 2, static_cast<size_t>(size - i) * 2);
  const F8 last = kLoad(padded);
  for (int lane = 0; i < size; ++i, ++lane) out[i] = last[lane];
}

void dequantise_f32(const uint8_t* row, int64_t size, float* out) {
  std::memcpy(out, row, static_cast<size_t>(size) * sizeof(float));
}

void dequantise_f16(const uint8_t* row, int64_t size, float* out) {
  sixteen_bit_row<load_half>(row, size, out);
}

void dequantise_bf16(const uint8_t* row, int64_t size, float* out) {
  sixteen_bit_row<load_bfloat16>(row, size, out);
}

void dequantise_q4_0(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 18) {
    const float d = half_at(row);
    for_nibbles(row + 2, [&](int at, I8 q) { store_scaled(out + i + at, q - 8, d); });
  }
}

void dequantise_q4_1(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 20) {
    const float d = half_at(row);
    const float m = half_at(row + 2);
    for_nibbles(row + 4, [&](int at, I8 q) { store_scaled(out + i + at, q, d, m); });
  }
}

void dequantise_q8_0(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 34) {
    const float d = half_at(row);
    for (int j = 0; j < 32; j += kLanes) store_scaled(out + i + j, load_signed_bytes(row + 2 + j), d);
  }
}

void dequantise_q5_0(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 22) {
    const float d = half_at(row);
    for_nibbles(row + 6, [&](int at, I8 q) { store_scaled(out + i + at, (q | fifth_bits(row[2 + at / 8])) - 16, d); });
  }
}

void dequantise_q5_1(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 24) {
    const float d = half_at(row);
    const float m = half_at(row + 2);
    for_nibbles(row + 8, [&](int at, I8 q) { store_scaled(out + i + at, q | fifth_bits(row[4 + at / 8]), d, m); });
  }
}

// The K formats: byte p of a run has the codes of values p, 32 + p, ... of the run; `at` goes along the run's bytes,
// `run` and `plane` choose the bits. Groups are of 16 values, or of 32: a plane of a run.

void dequantise_q2_k(const uint8_t* row, int64_t size, float* out) {
  for (const float* end = out + size; out < end; out += 256, row += 84) {
    const float d = half_at(row + 80);
    const float e = half_at(row + 82);
    for (int run = 0; run < 2; ++run) {
      for (int at = 0; at < 32; at += kLanes) {
        const I8 quants = load_unsigned_bytes(row + 16 + run * 32 + at);
        for (int plane = 0; plane < 4; ++plane) {
          const int first = run * 128 + plane * 32 + at;
          const int scales = row[first / 16];
          store_scaled(out + first, (quants >> (2 * plane)) & 3, d * static_cast<float>(scales & 0x0f),
                       -(e * static_cast<float>(scales >> 4)));
        }
      }
    }
  }
}

void dequantise_q3_k(const uint8_t* row, int64_t size, float* out) {
  for (const float* end = out + size; out < end; out += 256, row += 110) {
    const float d = half_at(row + 108);
    float scales[16];
    for (int group = 0; group < 16; ++group) {
      const int low = (row[96 + group % 8] >> (group / 8 * 4)) & 0x0f;
      const int high = (row[104 + group % 4] >> (group / 4 * 2)) & 3;
      scales[group] = d * static_cast<float>((low | (high << 4)) - 32);
    }
    for (int run = 0; run < 2; ++run) {
      for (int at = 0; at < 32; at += kLanes) {
        const I8 low = load_unsigned_bytes(row + 32 + run * 32 + at);
        const I8 high = load_unsigned_bytes(row + at);
        for (int plane = 0; plane < 4; ++plane) {
          const int first = run * 128 + plane * 32 + at;
          const I8 q = ((low >> (2 * plane)) & 3) | (((high >> (4 * run + plane)) & 1) << 2);
          store_scaled(out + first, q - 4, scales[first / 16]);
        }
      }
    }
  }
}

void dequantise_q4_k(const uint8_t* row, int64_t size, float* out) {
  for (const float* end = out + size; out < end; out += 256, row += 144) {
    Groups groups;
    unpack_groups(row, groups);
    for (int group = 0; group < 8; group += 2) {
      for (int at = 0; at < 32; at += kLanes) {
        const I8 quants = load_unsigned_bytes(row + 16 + group * 16 + at);
        float* first = out + group * 32 + at;
        store_scaled(first, quants & 0x0f, groups.scale[group], -groups.minimum[group]);
        store_scaled(first + 32, quants >> 4, groups.scale[group + 1], -groups.minimum[group + 1]);
      }
    }
  }
}

void dequantise_q5_k(const uint8_t* row, int64_t size, float* out) {
  for (const float* end = out + size; out < end; out += 256, row += 176) {
    Groups groups;
    unpack_groups(row, groups);
    for (int group = 0; group < 8; group += 2) {
      for (int at = 0; at < 32; at += kLanes) {
        const I8 quants = load_unsigned_bytes(row + 48 + group * 16 + at);
        const I8 fifth = load_unsigned_bytes(row + 16 + at) >> group;
        float* first = out + group * 32 + at;
        store_scaled(first, (quants & 0x0f) | ((fifth & 1) << 4), groups.scale[group], -groups.minimum[group]);
        store_scaled(first + 32, (quants >> 4) | ((fifth & 2) << 3), groups.scale[group + 1],
                     -groups.minimum[group + 1]);
      }
    }
  }
}

void dequantise_q6_k(const uint8_t* row, int64_t size, float* out) {
  for (const float* end = out + size; out < end; out += 256, row += 210) {
    const float d = half_at(row + 208);
    for (int run = 0; run < 2; ++run) {
      for (int at = 0; at < 32; at += kLanes) {
        const I8 high = load_unsigned_bytes(row + 128 + run * 32 + at);
        for (int plane = 0; plane < 4; ++plane) {
          const int first = run * 128 + plane * 32 + at;
          const I8 low = load_unsigned_bytes(row + run * 64 + plane % 2 * 32 + at) >> (plane / 2 * 4);
          const I8 q = (low & 0x0f) | (((high >> (2 * plane)) & 3) << 4);
          store_scaled(out + first, q - 32, d * static_cast<float>(static_cast<int8_t>(row[192 + first / 16])));
        }
      }
    }
  }
}

void dequantise_iq4_nl(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 18) level_block(kIq4Levels, row + 2, half_at(row), out + i);
}

void dequantise_iq4_xs(const uint8_t* row, int64_t size, float* out) {
  for (const float* end = out + size; out < end; out += 256, row += 136) {
    const float d = half_at(row);
    for (int group = 0; group < 8; ++group) {
      const int low = (row[4 + group / 2] >> (group % 2 * 4)) & 0x0f;
      const int high = (row[2 + group / 4] >> (group % 4 * 2)) & 3;
      level_block(kIq4Levels, row + 8 + group * 16, d * static_cast<float>((low | (high << 4)) - 32), out + group * 32);
    }
  }
}

void dequantise_mxfp4(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 17) {
    // 2^(e - 128) by its bits; the two smallest are denormal.
    const uint32_t bits = *row < 2 ? (*row + 1u) << 21 : (*row - 1u) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    level_block(kMxfp4Levels, row + 1, scale, out + i);
  }
}

}  // namespace

DequantiseKernel dequantise_kernel(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return dequantise_f32;
    case DType::kF16:
      return dequantise_f16;
    case DType::kBF16:
      return dequantise_bf16;
    case DType::kQ4_0:
      return dequantise_q4_0;
    case DType::kQ4_1:
      return dequantise_q4_1;
    case DType::kQ8_0:
      return dequantise_q8_0;
    case DType::kQ5_0:
      return dequantise_q5_0;
    case DType::kQ5_1:
      return dequantise_q5_1;
    case DType::kQ2_K:
      return dequantise_q2_k;
    case DType::kQ3_K:
      return dequantise_q3_k;
    case DType::kQ4_K:
      return dequantise_q4_k;
    case DType::kQ5_K:
      return dequantise_q5_k;
    case DType::kQ6_K:
      return dequantise_q6_k;
    case DType::kIQ4_NL:
      return dequantise_iq4_nl;
    case DType::kIQ4_XS:
      return dequantise_iq4_xs;
    case DType::kMXFP4:
      return dequantise_mxfp4;
    default:
      return level_dequantise_kernel(dtype);
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
