// Weights that HQQ writes into safetensors (Badri and Shaji, 2023; github.com/mobiusml/hqq, which transformers'
// HqqConfig uses): the matrix [out, in], flat, is cut into groups that share "X.scale" and "X.zero", which is a
// fraction. A value is scale times (code less zero). With "X.axis" 1 a group is the next "X.group_size" numbers; with 0
// there are out * in / group_size of them that take turns. Of the groups as a matrix [groups, group_size], or its
// turned form, "X.W_q" has codes of a word's parts so many rows apart, as "X.packing" says. See weight_formats.h.
#pragma once

#include "nn/coded_weights.h"

namespace quire::nn {

// Packed as codes of kBits: 1, 2, 3, 4, 8 (which 5 and 6 are, too). Told by the tensors alone: the library itself
// writes no quantization_config.
template <int kBits>
bool are_hqq(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
             const checkpoint::CheckpointTensor& codes);
// Errors: data_loss for tensors of another shape than groups and packing ask for; unimplemented for codes that are not
// packed, zeros or scales that are codes themselves, and groups that do not divide a row.
Status resolve_hqq(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                   StoredWeight& out);
template <int kBits>
void unpack_hqq(const StoredWeight& weight, int64_t row, CodedRow& out);

}  // namespace quire::nn
