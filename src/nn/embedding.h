// Token embeddings, read row by row out of the mapped checkpoint; learned positions are such a table too.
#pragma once

#include <string>

#include "nn/loader.h"
#include "ops/embedding.h"

namespace quire::nn {

class Embedding {
 public:
  Embedding() = default;
  // The row of id is at id + offset.
  Embedding(Loader& loader, const std::string& name, int64_t num_rows, int64_t size, int64_t offset = 0)
      : table_(loader.raw(name, {num_rows, size})) {
    if (table_.data == nullptr) return;
    table_.data = static_cast<const uint8_t*>(table_.data) + offset * row_bytes(table_.dtype, size);
    table_.shape = {num_rows - offset, size};
  }

  // out: [num_tokens, size].
  void operator()(ops::Backend& backend, const TokenId* ids, int64_t num_tokens, float* out) const {
    backend(ops::EmbeddingArgs{.ids = ids, .num_tokens = num_tokens, .table = table_, .out = out});
  }

 private:
  TensorView table_;
};

}  // namespace quire::nn
