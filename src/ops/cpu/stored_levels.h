// Blocks of the formats of grids and of few levels (IQ1, IQ2, IQ3, TQ, NVFP4), of Q8_K and of coded weights, as stored:
// taken apart for packing, and as floats for embedding rows. None of it is worth kernels of its own: a model is packed
// once, and of an embedding a step reads a row a token.
#pragma once

#include <cstdint>

#include "ops/cpu/kernels.h"
#include "tensor/dtype.h"

namespace quire::ops::cpu {

struct StoredGroup;

// As stored_group(): codes as levels.h has them; a group's scale as the whole number that multiplies d, of NVFP4 as
// F8_E4M3 without its sign and with 0 for NaN. REQUIRES: one of these formats.
StoredGroup group_of_levels(DType dtype, const uint8_t* block, int group);
// The f16 d that IQ1_M keeps in four parts.
uint16_t scattered_d(const uint8_t* block);

// For Kernels::dequantise, the same for every instruction set; nullptr: another format.
DequantiseKernel level_dequantise_kernel(DType dtype);

}  // namespace quire::ops::cpu
