// Blocks of the formats of grids and of few levels (IQ1, IQ2, IQ3, TQ, NVFP4) and of Q8_K, as a checkpoint stores them:
// taken apart for packing, and as floats for embedding rows. None of it is worth kernels of its own: a model is packed
// once, and of an embedding a step reads a row a token. Only declarations: kernel tables name the functions.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire::ops::cpu {

struct StoredGroup;

// As stored_group(): codes as levels.h has them; a group's scale as the whole number that multiplies d, of NVFP4 as
// F8_E4M3 without its sign and with 0 for what is no number. REQUIRES: one of these formats.
StoredGroup group_of_levels(DType dtype, const uint8_t* block, int group);
// The f16 d that IQ1_M keeps in four parts.
uint16_t scattered_d(const uint8_t* block);

// As Kernels::dequantise, for every instruction set.
void dequantise_iq2_xxs(const uint8_t* row, int64_t size, float* out);
void dequantise_iq2_xs(const uint8_t* row, int64_t size, float* out);
void dequantise_iq2_s(const uint8_t* row, int64_t size, float* out);
void dequantise_iq3_xxs(const uint8_t* row, int64_t size, float* out);
void dequantise_iq3_s(const uint8_t* row, int64_t size, float* out);
void dequantise_iq1_s(const uint8_t* row, int64_t size, float* out);
void dequantise_iq1_m(const uint8_t* row, int64_t size, float* out);
void dequantise_tq1_0(const uint8_t* row, int64_t size, float* out);
void dequantise_tq2_0(const uint8_t* row, int64_t size, float* out);
void dequantise_nvfp4(const uint8_t* row, int64_t size, float* out);
void dequantise_q8_k(const uint8_t* row, int64_t size, float* out);

}  // namespace quire::ops::cpu
