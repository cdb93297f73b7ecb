// Grouped-query attention over the paged cache (Ainslie et al., 2023): projections, rotation, cache
// write, paged read.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "nn/kv_layer.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "nn/rotary.h"

namespace quire::nn {

// Norms of queries and keys, RMS norms before they are rotated where nothing else is said.
enum class QkNorm {
  kNone,
  kHead,         // each head by itself
  kHeadRotated,  // the same, behind the rotation (HunYuan)
  kHeadPlain,    // the same as kHead without weights; so behind the rotation, too, which keeps the norm (Llama 4)
  kProjection,   // all heads of a token together
  kLayerOfHead,  // layer norms without biases, with weights of each head's own (Command R+, StableLM 2 12B)
};

struct AttentionConfig {
  int64_t hidden_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  bool bias = false;         // of the q, k and v projections
  bool output_bias = false;  // of the output projection
  QkNorm qk_norm = QkNorm::kNone;
  double norm_eps = 1e-6;
  double norm_weight_offset = 0;
  float scale = 1.0f;               // of the scores
  float soft_cap = 0;               // of the scores; 0: none
  float qkv_limit = 0;              // that queries, keys and values are cut off at, behind norms of all heads; 0: none
  int32_t window = 0;               // 0: sees every earlier position
  bool both_ways = false;           // no causal mask; of a window then as many positions behind as before
  bool sinks = false;               // each head has a score that joins the softmax and has no value
  bool value_norm = false;          // RMS norms of the heads of values, without weights
  bool keys_are_values = false;     // values are what keys are before their norm: there is no v_proj
  bool output_gate = false;         // a gate's sigmoid takes each head's output: q_proj has its query, then its gate
  const char* gate_name = nullptr;  // of a projection that has the gates alone, in place of q_proj's
  bool stores = true;               // false: reads what another layer has stored; there are neither k_proj nor v_proj
  // One projection has of each group of heads that share keys its queries, its keys, its values; else all queries come
  // first, then all keys, then all values. REQUIRES: it is named by the family.
  bool grouped_rows = false;
  const char* query_norm_name = "q_norm";
  const char* key_norm_name = "k_norm";
  const char* output_name = "o_proj";
};

// What a decoder's layer asks of its attention.
class SelfAttention {
 public:
  virtual ~SelfAttention() = default;
  // What x is best given as.
  virtual DType input_dtype(const StepContext& step) const = 0;
  // x, out: [num_tokens, hidden_size]; may not overlap. `layer`: of the batch's. A default-made rotary rotates nothing.
  virtual void operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary,
                          const ops::ConstView& x, const ops::View& out) const = 0;
  // What it keeps in the batch's layer, with keys and values stored as `dtype`.
  virtual KvLayerSpec kv_layer(DType dtype) const = 0;
};

// Calls change(all) with what all ranks have beside each other, where each has the columns that `columns` says, and
// takes the own ones back.
template <typename Change>
void over_all_columns(const StepContext& step, const std::vector<comm::ColumnRange>& columns, const ops::View& own,
                      const Change& change) {
  const int64_t mark = step.workspace.mark();
  int64_t size = 0;
  for (const comm::ColumnRange& range : columns) size = std::max(size, range.first + range.count);
  const ops::View all = step.workspace.take(own.num_rows, size);
  if (step.workspace.measures()) return step.workspace.rewind(mark);
  const comm::ColumnRange& range = columns[static_cast<size_t>(step.communicator->rank())];
  const ops::View part = all.columns(range.first, range.count);
  step.copy(own, part);
  step.communicator->gather_columns({all.floats(), all.num_rows, all.row_stride}, columns,
                                    comm::Communicator::kEverybody);
  change(all);
  step.copy(part, own);
  step.workspace.rewind(mark);
}

// The heads of a rank where their outputs are `second`'s inputs, head_dim each; cuts_groups: if the backend does, too
// (share_heads()). No such cut: the loader fails.
HeadShare share_of_heads(Loader& loader, const Linear::Part& second, int32_t num_heads, int32_t num_kv_heads,
                         int64_t head_dim, int rank, bool cuts_groups = false);

class Attention final : public SelfAttention {
 public:
  Attention() = default;
  // Parameters "<prefix>.{q,k,v}_proj", "<prefix>.<output_name>", "<prefix>.<{query,key}_norm_name>", "<prefix>.sinks".
  // Of QkNorm::kLayerOfHead "<name>.weight" [heads, head_dim], or "<name>.norms.<head>.weight" each.
  Attention(Loader& loader, const std::string& prefix, const AttentionConfig& config);
  // Projections by names of the family's own.
  Attention(Loader& loader, const std::string& prefix, const AttentionConfig& config, std::vector<Linear::Part> qkv,
            const Linear::Part& output);

  void operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary, const ops::ConstView& x,
                  const ops::View& out) const override;
  // The same where only the last rows ask, those of `asking`, and of the rows before them keys and values alone are
  // stored. out: [asking.num_tokens, hidden_size]. REQUIRES: asking.num_tokens > 0.
  void attend(const StepContext& step, const Batch& asking, const CacheLayer& layer, const Rotary& rotary,
              const ops::ConstView& x, const ops::View& out) const;
  // Stores keys and values of all rows, of which none asks. x: [num_tokens, hidden_size].
  void store(const StepContext& step, const CacheLayer& layer, const Rotary& rotary, const ops::ConstView& x) const;
  DType input_dtype(const StepContext& step) const override { return qkv_.input_dtype(step, step.batch.num_tokens); }
  KvLayerSpec kv_layer(DType dtype) const override {
    return {.kind = KvKind::kKeysAndValues,
            .num_kv_heads = config_.num_kv_heads,
            .key_dim = config_.head_dim,
            .value_dim = config_.head_dim,
            .window = config_.window,
            .dtype = dtype};
  }

 private:
  // In the workspace: the queries as attention reads them, keys and values stored, and the gates of its output where
  // there are any.
  struct Projected {
    ops::View queries;
    ops::View gates;
  };
  Projected project(const StepContext& step, const CacheLayer& layer, const Rotary& rotary,
                    const ops::ConstView& x) const;
  // Of `share` the config's heads, and the rows of the projections that are theirs.
  void take_share(Loader& loader, const HeadShare& share, std::vector<Linear::Part>& qkv);
  int64_t gate_size() const { return config_.output_gate ? int64_t{config_.num_heads} * config_.head_dim : 0; }
  // Queries alone, as attention reads them, of a layer that stores nothing.
  void prepare_queries(const StepContext& step, const Rotary& rotary, const ops::View& queries) const;
  void make_norms(Loader& loader, const std::string& prefix, const AttentionConfig& whole, const HeadShare& share);
  void norm_each_head(const StepContext& step, const RmsNorm& norm, const ops::View& heads) const;
  // Layer norms of the heads of queries and keys, which lie beside each other.
  void norm_heads(const StepContext& step, const ops::View& heads) const;
  // Norms over all heads of a token, of which other ranks have some: all are gathered, normed, and the own ones kept.
  void norm_projection(const StepContext& step, const RmsNorm& norm, const std::vector<comm::ColumnRange>& columns,
                       const ops::View& own) const;

  AttentionConfig config_;  // heads: those of this rank
  int32_t group_ = 0;       // of a rank that has parts of groups: PagedAttentionArgs::group
  int32_t heads_before_ = 0;
  Linear qkv_;
  Linear output_;
  std::vector<comm::ColumnRange> query_columns_;  // of QkNorm::kProjection of several ranks: each one's
  std::vector<comm::ColumnRange> key_columns_;
  RmsNorm query_norm_;
  RmsNorm key_norm_;
  Parameter head_weights_;  // of QkNorm::kLayerOfHead: of queries, then of keys, [heads, head_dim]; or empty
  Parameter value_weight_;  // ones, [head_dim], or empty
  Parameter sinks_;         // [num_heads] or empty
};

}  // namespace quire::nn
