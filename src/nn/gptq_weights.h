// Weights of GPTQ (Frantar and others, 2022) and AWQ (Lin and others, 2023) as checkpoints of Hugging Face keep them,
// in words of 32 bits, in place of "X.weight" [out, in]:
//   GPTQ  "X.qweight" [in * bits / 32, out], along the inputs, the lowest bits first; "X.qzeros" [groups, out * bits /
//   32],
//         along the outputs, which of format gptq are one less than meant; "X.scales" [groups, out]; "X.g_idx" [in]
//         where groups are no neighbours (act-order)
//   AWQ   version gemm: "X.qweight" [in, out / 8], outputs 0 2 4 6 1 3 5 7 of each eight in a word, "X.qzeros"
//         [groups, out / 8] alike; version gemv: [out, in / 8] in their own order, "X.qzeros" [out, w] and "X.scales"
//         [out, 8 w], w being as many words as groups need, or more
//   Marlin (format marlin of GPTQ): "X.B" [in / 16, 2 out], codes 8 above their values in tiles, "X.s" [groups, out] in
//         an order of its own
// See weight_formats.h.
#pragma once

#include "nn/coded_weights.h"

namespace quire::nn {

// kZeroOffset: what is added to a stored zero.
template <int kZeroOffset>
bool are_gptq(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
              const checkpoint::CheckpointTensor& codes);
Status resolve_gptq(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                    StoredWeight& out);
template <int kZeroOffset>
void unpack_gptq(const StoredWeight& weight, int64_t row, CodedRow& out);

template <bool kGemv>
bool are_awq(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
             const checkpoint::CheckpointTensor& codes);
Status resolve_awq(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                   StoredWeight& out);
template <bool kGemv>
void unpack_awq(const StoredWeight& weight, int64_t row, CodedRow& out);
// A code of words [lines, columns / 8] in the order of version gemm.
int awq_code(const TensorView& words, int64_t line, int64_t column);

bool are_marlin(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec,
                const checkpoint::CheckpointTensor& codes);
Status resolve_marlin(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                      StoredWeight& out);
void unpack_marlin(const StoredWeight& weight, int64_t row, CodedRow& out);

}  // namespace quire::nn
