// Weights as bitsandbytes keeps them (Dettmers and others, 2022 and 2023), in "X.weight":
//   4 bits  U8 [out * in / 2, 1], codes along the row-major weight, the first of two in the upper half of a byte, in
//           blocks of 64 that share a scale: "X.weight.absmax", with the levels "X.weight.quant_map" and, as JSON,
//           "X.weight.quant_state.bitsandbytes__nf4" or "__fp4". Of double quantisation scales are codes themselves:
//           "X.weight.nested_absmax" and "X.weight.nested_quant_map", and an offset in the JSON
//   8 bits  I8 [out, in], 127ths of "X.SCB" [out] (LLM.int8()): inputs are rounded, but for those that are outliers
// See weight_formats.h.
#pragma once

#include "nn/coded_weights.h"

namespace quire::nn {

// kLevels: NF4 or FP4.
template <DType kLevels>
bool are_levels(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                const checkpoint::CheckpointTensor& codes);
template <DType kLevels>
Status resolve_levels(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                      StoredWeight& out);
template <DType kLevels>
void unpack_levels(const StoredWeight& weight, int64_t row, CodedRow& out);

bool are_llm_int8(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                  const checkpoint::CheckpointTensor& codes);
Status resolve_llm_int8(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                        StoredWeight& out);
void unpack_llm_int8(const StoredWeight& weight, int64_t row, CodedRow& out);

}  // namespace quire::nn
