// Weights of whole numbers as compressed-tensors keeps them beside or in place of "X.weight" [out, in]:
//   pack-quantized  "X.weight_packed" [out, words] of 32 bits, codes of 4 or 8 bits along the inputs, the lowest bits
//                   first, 2^(bits - 1) above their values; "X.weight_scale" [out, groups]; where zeros are no 0
//                   "X.weight_zero_point" [words, groups], packed along the outputs; "X.weight_g_idx" [in] where groups
//                   are no neighbours; "X.weight_shape"
//   int-quantized   "X.weight" of I8, "X.weight_scale", "X.weight_zero_point" of I8
// What inputs are rounded to is a module's too. See weight_formats.h.
#pragma once

#include "nn/coded_weights.h"

namespace quire::nn {

bool are_packed(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                const checkpoint::CheckpointTensor& codes);
Status resolve_packed(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                      StoredWeight& out);
void unpack_packed(const StoredWeight& weight, int64_t row, CodedRow& out);

bool are_bytes(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
               const checkpoint::CheckpointTensor& codes);
Status resolve_bytes(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                     StoredWeight& out);
void unpack_bytes(const StoredWeight& weight, int64_t row, CodedRow& out);

// Sets what a module's group of the configuration says of its inputs; nothing where there is no such configuration.
// Errors: data_loss where no group has the module, or the scale that it tells of is missing.
Status resolve_inputs(const checkpoint::Checkpoint& checkpoint, const std::string& module, DeclareTensor declare,
                      StoredWeight& out);

}  // namespace quire::nn
