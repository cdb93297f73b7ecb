// The kernels of one instruction set, for its table. Included by *.kernels.cpp alone.
#pragma once

#include "ops/cpu/kernels.h"

namespace quire::ops::cpu::QUIRE_ISA {

// nullptr: none. Whole numbers: bytes or words.
LinearKernel float_linear(DType dtype);
LinearKernel whole_number_linear(Activations activations, DType dtype);
CodeRowKernel whole_number_code_row(Activations activations, DType dtype);
CodeOwnRowKernel whole_number_code_own_row(Activations activations, DType dtype);
LinearKernel lattice_linear(DType dtype);
CodeRowKernel lattice_code_row(DType dtype);
bool lattice_is_coarse();
DequantiseKernel dequantise_kernel(DType dtype);

// Rows of bfloat16 and weights of BF16; the second by instructions that not every processor of the set has.
void linear_pairs(const LinearTile& tile);
void linear_native_pairs(const LinearTile& tile);
void code_pairs(const float* x, int64_t k, uint8_t* row);

void quantise(DType dtype, const float* x, int64_t k, uint8_t* row);

void rms_norm(float* hidden, const float* delta, float delta_scale, const float* weight, float eps, int64_t size,
              float* out);
void layer_norm(float* hidden, const float* delta, const float* weight, const float* bias, float eps, int64_t size,
                float* out);
void rope(float* head, int32_t rotary_dim, bool interleaved, const float* cosines, const float* sines);
void activate(Activation function, const float* in, const float* up, int64_t size, float* out);
void add(float* hidden, const float* delta, float delta_scale, int64_t size);
void scale(float* values, float factor, float soft_cap, float limit, int64_t size);
void convolve(const ConvRun& run);
void recurrence(const RecurrenceRun& run);
void xielu(float* values, float positive, float negative, float beta, float eps, int64_t size);
void clamped_swiglu(const float* gate, const float* up, float alpha, float limit, int64_t size, float* out);
void moe_combine(const MoeCombineWork& work, int64_t size, float* out);

void low_rank_shrink(const LowRankShrink& work);
void low_rank_expand(const LowRankExpand& work);

void kv_write(const KvWrite& write);

void attention(const AttentionWork& work);
void attention_fold(float* total_maximum, float* total_sum, float* total, const float* maximum, const float* sum,
                    const float* weighted, int64_t num_rows, int32_t head_dim);
void attention_finish(const float* weighted, float sum, int32_t head_dim, float* out);

}  // namespace quire::ops::cpu::QUIRE_ISA
