// The kernels of one instruction set, for its table. Included by *.kernels.cpp alone.
#pragma once

#include "ops/cpu/kernels.h"

namespace quire::ops::cpu::QUIRE_ISA {

void linear_f32(const LinearTile& tile);
void linear_f16(const LinearTile& tile);
void linear_bf16(const LinearTile& tile);
void linear_q4_0(const LinearTile& tile);
void linear_q4_1(const LinearTile& tile);
void linear_q8_0(const LinearTile& tile);

void dequantise_f32(const uint8_t* row, int64_t size, float* out);
void dequantise_f16(const uint8_t* row, int64_t size, float* out);
void dequantise_bf16(const uint8_t* row, int64_t size, float* out);
void dequantise_q4_0(const uint8_t* row, int64_t size, float* out);
void dequantise_q4_1(const uint8_t* row, int64_t size, float* out);
void dequantise_q8_0(const uint8_t* row, int64_t size, float* out);

void rms_norm(float* hidden, const float* delta, const float* weight, float eps, int64_t size, float* out);
void rope(float* head, int32_t rotary_dim, bool interleaved, const float* cosines, const float* sines);
void silu_and_mul(const float* gate, const float* up, int64_t size, float* out);

void kv_write(const KvWrite& write);
// Tokens [first, first + count) of a kv head of a block, as floats: keys to [head_dim, out_stride], values to
// [count, head_dim].
struct KvPage {
  DType dtype;  // not F32
  const uint8_t* head;
  int64_t head_dim;
  int64_t block_size;
  int64_t first;
  int64_t count;
};
void widen_keys(const KvPage& page, int64_t out_stride, float* out);
void widen_values(const KvPage& page, float* out);

void attention(const AttentionWork& work);
void attention_fold(float* total_maximum, float* total_sum, float* total, float maximum, float sum,
                    const float* weighted, int32_t head_dim);
void attention_finish(const float* weighted, float sum, int32_t head_dim, float* out);

}  // namespace quire::ops::cpu::QUIRE_ISA
