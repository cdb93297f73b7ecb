// out[t] = float(table[ids[t]]).
#pragma once

#include "tensor/mirrored.h"
#include "tensor/tensor.h"
#include "types/ids.h"

namespace quire::ops {

struct EmbeddingArgs {
  Mirrored<TokenId> ids;  // [num_tokens], each in [0, table.shape[0])
  int64_t num_tokens = 0;
  TensorView table;      // [vocab_size, hidden_size], any dtype, rows as stored in the checkpoint
  float* out = nullptr;  // [num_tokens, hidden_size]
};

void check(const EmbeddingArgs& args);

}  // namespace quire::ops
