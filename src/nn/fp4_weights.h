// Weights of 4-bit floats (E2M1) in tensors of their own, two codes a byte, the first in its lower half:
//   NVFP4  compressed-tensors: "X.weight_packed" [out, in / 2], "X.weight_scale" of F8_E4M3 [out, in / 16] and
//          "X.weight_global_scale", by which scales are divided; ModelOpt: "X.weight", "X.weight_scale" and
//          "X.weight_scale_2", by which they are multiplied. Inputs may be rounded alike (RowRounding::kFloat4)
//   MXFP4  compressed-tensors: "X.weight_packed", "X.weight_scale" of U8 [out, in / 32], exponents; Quark: "X.weight"
//   and
//          the same scales
// Held as DType::kNVFP4 and kMXFP4; what all of a matrix shares multiplies its inputs. See weight_formats.h.
#pragma once

#include "nn/weight_formats.h"

namespace quire::nn {

bool are_nvfp4(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
               const checkpoint::CheckpointTensor& codes);
Status resolve_nvfp4(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                     StoredWeight& out);
void read_nvfp4(const StoredWeight& weight, int64_t row, DType form, uint8_t* out);

bool are_mxfp4(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
               const checkpoint::CheckpointTensor& codes);
Status resolve_mxfp4(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                     StoredWeight& out);
void read_mxfp4(const StoredWeight& weight, int64_t row, DType form, uint8_t* out);

}  // namespace quire::nn
