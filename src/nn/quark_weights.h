// Weights of AMD's Quark, whose quantization_config is one of groups (checkpoint/quark_config.h), in place of
// "X.weight" [out, in]:
//   4 bits  "X.weight" of I32 [in, out / 8] in the order of AWQ's words, "X.weight_scale" [groups, out],
//           "X.weight_zero_point" of I32 [groups, out / 8] as the codes; of int4 both are signed
// Those of 8 bits and MXFP4 are stored as compressed-tensors has them, codes being "X.weight" in any case
// (compressed_weights.h, scaled_weights.h, fp4_weights.h). See weight_formats.h.
#pragma once

#include "nn/coded_weights.h"

namespace quire::nn {

Status resolve_quark(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                     StoredWeight& out);
// kSigned: codes and zeros are -8 to 7.
template <bool kSigned>
bool are_quark_of(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                  const checkpoint::CheckpointTensor& codes);
template <bool kSigned>
void unpack_quark(const StoredWeight& weight, int64_t row, CodedRow& out);

}  // namespace quire::nn
