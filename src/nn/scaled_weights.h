// Weights of 8-bit floats as checkpoints keep them: "X.weight" of F8_E4M3 or F8_E5M2 (the latter also alone) and beside
// it "X.weight_scale_inv" (DeepSeek, Qwen) or "X.weight_scale" (compressed-tensors, FBGEMM, ModelOpt), which are what
// codes are multiplied by: one number, one a row, or one a block of rows and columns, whose shape quantization_config
// says; of U8 (MXFP8) they are exponents of two, one for every 32 columns. Stacks of experts have these for each of
// their matrices: "X.experts.gate_up_proj" [experts, rows, columns] with "X.experts.gate_up_proj_scale_inv". See
// weight_formats.h.
#pragma once

#include "nn/weight_formats.h"

namespace quire::nn {

// What activations and a cache of 8 bits would be divided by; neither is rounded by numbers of the checkpoint here.
inline constexpr std::string_view kBesideFloat8[] = {".input_scale", ".input_scale_ub",   ".output_scale",
                                                     ".q_scale",     ".k_scale",          ".v_scale",
                                                     ".kv_scale",    ".prob_output_scale"};

bool are_float8(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                const checkpoint::CheckpointTensor& codes);
// Errors: data_loss where the scales are missing or fit no block; unimplemented for stacks that are stored transposed,
// for matrices that are so with other scales than one number, and for stacks whose matrices are no whole blocks.
Status resolve_float8(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                      StoredWeight& out);
// F8_E4M3 where a row has one scale, F8_E4M3_128 where blocks are whole times 128 columns wide, F8_E4M3_32 of MXFP8,
// which loses nothing; else, and of F8_E5M2, BF16, which is within 2^-9 of a value.
DType form_of_float8(const StoredWeight& weight);
// As BF16, or as form_of_float8() with its floats behind the row (ops/quantise.h).
void read_float8(const StoredWeight& weight, int64_t row, DType form, uint8_t* out);

}  // namespace quire::nn
