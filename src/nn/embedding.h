// Token embeddings, read row by row out of the mapped checkpoint; and the projection of hidden
// states to logits, which may be the same matrix.
#pragma once

#include <string>

#include "nn/linear.h"

namespace quire::nn {

class Embedding {
 public:
  Embedding() = default;
  Embedding(Loader& loader, const std::string& name, int64_t vocab_size, int64_t hidden_size)
      : table_(loader.raw(name, {vocab_size, hidden_size})) {}

  // out: [num_tokens, hidden_size].
  void operator()(ops::Backend& backend, const TokenId* ids, int64_t num_tokens, float* out) const {
    backend(ops::EmbeddingArgs{.ids = ids, .num_tokens = num_tokens, .table = table_, .out = out});
  }

 private:
  TensorView table_;
};

}  // namespace quire::nn
