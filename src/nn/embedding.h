// Token embeddings, read row by row as the checkpoint stores them; learned positions are such a table too.
#pragma once

#include <memory>
#include <string>

#include "nn/linear.h"
#include "nn/loader.h"
#include "nn/step_context.h"
#include "ops/embedding.h"

namespace quire::nn {

class Embedding {
 public:
  Embedding() = default;
  // Of the vocabulary: of several ranks each has the rows of some tokens.
  static Embedding of_tokens(Loader& loader, const std::string& name, int64_t num_rows, int64_t size) {
    if (loader.shard().is_whole()) return {loader, name, num_rows, size};
    const auto columns = vocabulary_columns(num_rows, loader.shard().size);
    const comm::ColumnRange& own = columns[static_cast<size_t>(loader.shard().rank)];
    Embedding part;
    part.table_ = loader.table(name, {num_rows, size}, Range{own.first, own.count});
    part.layer_ = layer_of(loader, name, num_rows, size);
    part.is_part_ = true;
    part.first_id_ = static_cast<TokenId>(own.first);
    return part;
  }
  // The row of id is at id + offset.
  Embedding(Loader& loader, const std::string& name, int64_t num_rows, int64_t size, int64_t offset = 0)
      : table_(loader.table(name, {num_rows, size})) {
    // Of rows that are counted from another place nobody says which they are.
    if (offset == 0) layer_ = layer_of(loader, name, num_rows, size);
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
                            .row_stride = table_.row_stride,
                            .is_part = is_part_,
                            .first_id = first_id_});
    if (is_part_) Linear::sum(step, out);
    if (step.adapts(layer_.get())) step.adapters->add_embedded(step, *layer_, ids, out);
  }

 private:
  // Adapters add to the sum of all ranks' rows, each rank for itself: to them it is not cut.
  static std::shared_ptr<const AdaptableLayer> layer_of(Loader& loader, const std::string& name, int64_t num_rows,
                                                        int64_t size) {
    const std::string module = name.substr(0, name.rfind('.'));
    return loader.adaptable({.kind = AdaptableLayer::Kind::kEmbedding,
                             .in_features = num_rows,
                             .out_features = size,
                             .parts = {{.module = module, .size = size, .stored = module, .transposed = true}}});
  }

  ops::ResidentTable table_;
  bool is_part_ = false;
  TokenId first_id_ = 0;
  std::shared_ptr<const AdaptableLayer> layer_;
};

}  // namespace quire::nn
