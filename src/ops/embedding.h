// out[t] = float(table[ids[t] - first_id]); of a part of a table zeros for ids of the others.
#pragma once

#include "tensor/mirrored.h"
#include "tensor/tensor.h"
#include "types/ids.h"

namespace quire::ops {

struct EmbeddingArgs {
  Mirrored<TokenId> ids;  // [num_tokens], each in [0, table.shape[0]) unless it is a part
  int64_t num_tokens = 0;
  TensorView table;        // [vocab_size, hidden_size], any dtype, rows as stored in the checkpoint
  float* out = nullptr;    // [num_tokens, hidden_size]
  int64_t row_stride = 0;  // bytes from one row of the table to the next; 0: they follow each other
  // The table is the part of one whose first row is this id's; other ids have their rows elsewhere.
  bool is_part = false;
  TokenId first_id = 0;
};

// Of the table, what it is where the arguments leave it out.
inline int64_t row_stride(const EmbeddingArgs& args) {
  return args.row_stride > 0 ? args.row_stride : row_bytes(args.table.dtype, args.table.shape[1]);
}

// The row of an id; -1: it is not in this part.
inline int64_t row_of(const EmbeddingArgs& args, TokenId id) {
  const int64_t row = int64_t{id} - args.first_id;
  return row >= 0 && row < args.table.shape[0] ? row : -1;
}

void check(const EmbeddingArgs& args);

}  // namespace quire::ops
