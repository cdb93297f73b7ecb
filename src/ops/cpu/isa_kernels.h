// The kernels of one instruction set, for its table. Included by *.kernels.cpp alone.
#pragma once

#include "ops/cpu/kernels.h"

namespace quire::ops::cpu::QUIRE_ISA {

void linear_f32(const LinearTile& tile);
void linear_f16(const LinearTile& tile);
void linear_bf16(const LinearTile& tile);
// Rows of bfloat16; the second by instructions that not every processor of the set has.
void linear_pairs_bf16(const LinearTile& tile);
void linear_native_pairs_bf16(const LinearTile& tile);
void code_pairs(const float* x, int64_t k, uint8_t* row);
void linear_f8_e4m3(const LinearTile& tile);
void linear_q4_0(const LinearTile& tile);
void linear_q4_1(const LinearTile& tile);
void linear_q5_0(const LinearTile& tile);
void linear_q5_1(const LinearTile& tile);
void linear_q2_k(const LinearTile& tile);
void linear_q3_k(const LinearTile& tile);
void linear_q4_k(const LinearTile& tile);
void linear_q5_k(const LinearTile& tile);
void linear_q6_k(const LinearTile& tile);
void linear_q8_0(const LinearTile& tile);
void linear_iq4_nl(const LinearTile& tile);
void linear_iq4_xs(const LinearTile& tile);
void linear_mxfp4(const LinearTile& tile);
void linear_iq2_xxs(const LinearTile& tile);
void linear_iq2_s(const LinearTile& tile);
void linear_iq3_xxs(const LinearTile& tile);
void linear_iq3_s(const LinearTile& tile);
void linear_iq1_s(const LinearTile& tile);
void linear_iq1_m(const LinearTile& tile);
void linear_tq2_0(const LinearTile& tile);
void linear_nvfp4(const LinearTile& tile);
void linear_q8_k(const LinearTile& tile);

// Rows of whole numbers: 8 bits where the codes have at most 6, 16 bits for all.
void code_bytes_q4_0(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q4_0(const LinearTile& tile);
void code_bytes_q4_1(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q4_1(const LinearTile& tile);
void code_bytes_q5_0(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q5_0(const LinearTile& tile);
void code_bytes_q5_1(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q5_1(const LinearTile& tile);
void code_bytes_q2_k(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q2_k(const LinearTile& tile);
void code_bytes_q3_k(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q3_k(const LinearTile& tile);
void code_bytes_q4_k(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q4_k(const LinearTile& tile);
void code_bytes_q5_k(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q5_k(const LinearTile& tile);
void code_bytes_q6_k(const float* x, int64_t k, uint8_t* row);
void linear_bytes_q6_k(const LinearTile& tile);
void code_words_q4_0(const float* x, int64_t k, uint8_t* row);
void linear_words_q4_0(const LinearTile& tile);
void code_words_q4_1(const float* x, int64_t k, uint8_t* row);
void linear_words_q4_1(const LinearTile& tile);
void code_words_q5_0(const float* x, int64_t k, uint8_t* row);
void linear_words_q5_0(const LinearTile& tile);
void code_words_q5_1(const float* x, int64_t k, uint8_t* row);
void linear_words_q5_1(const LinearTile& tile);
void code_words_q2_k(const float* x, int64_t k, uint8_t* row);
void linear_words_q2_k(const LinearTile& tile);
void code_words_q3_k(const float* x, int64_t k, uint8_t* row);
void linear_words_q3_k(const LinearTile& tile);
void code_words_q4_k(const float* x, int64_t k, uint8_t* row);
void linear_words_q4_k(const LinearTile& tile);
void code_words_q5_k(const float* x, int64_t k, uint8_t* row);
void linear_words_q5_k(const LinearTile& tile);
void code_words_q6_k(const float* x, int64_t k, uint8_t* row);
void linear_words_q6_k(const LinearTile& tile);
void code_words_q8_0(const float* x, int64_t k, uint8_t* row);
void linear_words_q8_0(const LinearTile& tile);
void code_words_iq4_nl(const float* x, int64_t k, uint8_t* row);
void linear_words_iq4_nl(const LinearTile& tile);
void code_words_iq4_xs(const float* x, int64_t k, uint8_t* row);
void linear_words_iq4_xs(const LinearTile& tile);
void code_bytes_mxfp4(const float* x, int64_t k, uint8_t* row);
void linear_bytes_mxfp4(const LinearTile& tile);
void code_words_mxfp4(const float* x, int64_t k, uint8_t* row);
void linear_words_mxfp4(const LinearTile& tile);
void code_words_iq2_xxs(const float* x, int64_t k, uint8_t* row);
void linear_words_iq2_xxs(const LinearTile& tile);
void code_words_iq2_s(const float* x, int64_t k, uint8_t* row);
void linear_words_iq2_s(const LinearTile& tile);
void code_bytes_iq3_xxs(const float* x, int64_t k, uint8_t* row);
void linear_bytes_iq3_xxs(const LinearTile& tile);
void code_words_iq3_xxs(const float* x, int64_t k, uint8_t* row);
void linear_words_iq3_xxs(const LinearTile& tile);
void code_bytes_iq3_s(const float* x, int64_t k, uint8_t* row);
void linear_bytes_iq3_s(const LinearTile& tile);
void code_words_iq3_s(const float* x, int64_t k, uint8_t* row);
void linear_words_iq3_s(const LinearTile& tile);
void code_bytes_iq1_s(const float* x, int64_t k, uint8_t* row);
void linear_bytes_iq1_s(const LinearTile& tile);
void code_words_iq1_s(const float* x, int64_t k, uint8_t* row);
void linear_words_iq1_s(const LinearTile& tile);
void code_bytes_iq1_m(const float* x, int64_t k, uint8_t* row);
void linear_bytes_iq1_m(const LinearTile& tile);
void code_words_iq1_m(const float* x, int64_t k, uint8_t* row);
void linear_words_iq1_m(const LinearTile& tile);
void code_bytes_tq2_0(const float* x, int64_t k, uint8_t* row);
void linear_bytes_tq2_0(const LinearTile& tile);
void code_words_tq2_0(const float* x, int64_t k, uint8_t* row);
void linear_words_tq2_0(const LinearTile& tile);
void code_bytes_nvfp4(const float* x, int64_t k, uint8_t* row);
void linear_bytes_nvfp4(const LinearTile& tile);
void code_words_nvfp4(const float* x, int64_t k, uint8_t* row);
void linear_words_nvfp4(const LinearTile& tile);
void code_words_q8_k(const float* x, int64_t k, uint8_t* row);
void linear_words_q8_k(const LinearTile& tile);

void dequantise_f32(const uint8_t* row, int64_t size, float* out);
void dequantise_f16(const uint8_t* row, int64_t size, float* out);
void dequantise_bf16(const uint8_t* row, int64_t size, float* out);
void dequantise_q4_0(const uint8_t* row, int64_t size, float* out);
void dequantise_q4_1(const uint8_t* row, int64_t size, float* out);
void dequantise_q8_0(const uint8_t* row, int64_t size, float* out);
void dequantise_q5_0(const uint8_t* row, int64_t size, float* out);
void dequantise_q5_1(const uint8_t* row, int64_t size, float* out);
void dequantise_q2_k(const uint8_t* row, int64_t size, float* out);
void dequantise_q3_k(const uint8_t* row, int64_t size, float* out);
void dequantise_q4_k(const uint8_t* row, int64_t size, float* out);
void dequantise_q5_k(const uint8_t* row, int64_t size, float* out);
void dequantise_q6_k(const uint8_t* row, int64_t size, float* out);
void dequantise_iq4_nl(const uint8_t* row, int64_t size, float* out);
void dequantise_iq4_xs(const uint8_t* row, int64_t size, float* out);
void dequantise_mxfp4(const uint8_t* row, int64_t size, float* out);

void quantise(DType dtype, const float* x, int64_t k, uint8_t* row);

void rms_norm(float* hidden, const float* delta, float delta_scale, const float* weight, float eps, int64_t size,
              float* out);
void layer_norm(float* hidden, const float* delta, const float* weight, const float* bias, float eps, int64_t size,
                float* out);
void rope(float* head, int32_t rotary_dim, bool interleaved, const float* cosines, const float* sines);
void activate(Activation function, const float* in, const float* up, int64_t size, float* out);
void add(float* hidden, const float* delta, float delta_scale, int64_t size);
void scale(float* values, float factor, float soft_cap, int64_t size);
void clamped_swiglu(const float* gate, const float* up, float alpha, float limit, int64_t size, float* out);
void moe_combine(const MoeCombineWork& work, int64_t size, float* out);

void kv_write(const KvWrite& write);

void attention(const AttentionWork& work);
void attention_fold(float* total_maximum, float* total_sum, float* total, const float* maximum, const float* sum,
                    const float* weighted, int64_t num_rows, int32_t head_dim);
void attention_finish(const float* weighted, float sum, int32_t head_dim, float* out);

}  // namespace quire::ops::cpu::QUIRE_ISA
