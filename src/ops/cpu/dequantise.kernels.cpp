// Rows as a checkpoint stores them, at any alignment, to floats: the embedding table.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/simd.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

QUIRE_INLINE float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return half_to_float(bits);
}

// The 32 values of a block of 4-bit q: d * q + m.
QUIRE_INLINE void nibble_block(const uint8_t* quants, float d, float m, float* out) {
  for (int half = 0; half < 2; ++half) {
    const I8 bytes = load_unsigned_bytes(quants + half * 8);
    store(out + half * 8, fma(to_float(bytes & 0x0f), broadcast(d), broadcast(m)));
    store(out + 16 + half * 8, fma(to_float(bytes >> 4), broadcast(d), broadcast(m)));
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

}  // namespace

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
    nibble_block(row + 2, d, -8.0f * d, out + i);
  }
}

void dequantise_q4_1(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 20) nibble_block(row + 4, half_at(row), half_at(row + 2), out + i);
}

void dequantise_q8_0(const uint8_t* row, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += 32, row += 34) {
    const F8 d = broadcast(half_at(row));
    for (int j = 0; j < 32; j += kLanes) store(out + i + j, to_float(load_signed_bytes(row + 2 + j)) * d);
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
