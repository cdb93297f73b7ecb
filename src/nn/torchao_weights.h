// Weights that torchao writes into safetensors, an integer tensor of its kind taken apart: "X._weight_qdata" [out, in],
// whole numbers of int8 that may stand for fewer bits, "X._weight_scale" [out, groups], or [out] of whole rows, and
// maybe "X._weight_zero_point" of the same shape. A value is scale times (code less zero). See weight_formats.h.
#pragma once

#include "nn/coded_weights.h"

namespace quire::nn {

bool are_torchao(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                 const checkpoint::CheckpointTensor& codes);
// Errors: data_loss for tensors of other types and for groups that do not divide the columns.
Status resolve_torchao(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                       StoredWeight& out);
void unpack_torchao(const StoredWeight& weight, int64_t row, CodedRow& out);

}  // namespace quire::nn
