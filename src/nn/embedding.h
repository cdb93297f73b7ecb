// Token embeddings, read row by row as the checkpoint stores them; learned positions are such a table too.
#pragma once

#include <string>

#include "nn/loader.h"
#include "nn/step_context.h"
#include "ops/embedding.h"

namespace quire::nn {

class Embedding {
 public:
  Embedding() = default;
  // The row of id is at id + offset.
  Embedding(Loader& loader, const std::string& name, int64_t num_rows, int64_t size, int64_t offset = 0)
      : table_(loader.table(name, {num_rows, size})) {
    TensorView& view = table_.view;
    if (view.data == nullptr) return;
    if (table_.row_stride == 0) table_.row_stride = row_bytes(view.dtype, size);
    view.data = static_cast<const uint8_t*>(view.data) + offset * table_.row_stride;
    view.shape = {num_rows - offset, size};
  }

  // One id for each row of `out`, [num_tokens, size].
  void operator()(const StepContext& step, Mirrored<TokenId> ids, const ops::View& out) const {
    step(ops::EmbeddingArgs{.ids = ids,
                            .num_tokens = out.num_rows,
                            .table = table_.view,
                            .out = out.floats(),
                            .row_stride = table_.row_stride});
  }

 private:
  ops::ResidentTable table_;
};

}  // namespace quire::nn
