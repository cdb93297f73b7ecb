// The adapters of one step's rows.
#pragma once

#include <vector>

#include "nn/step_context.h"
#include "runner/adapter.h"

namespace quire::runner {

class StepAdapters final : public nn::RowAdapters {
 public:
  // Begins a batch. Runs follow in the order of its rows; nullptr: they have none.
  void clear();
  void add_run(const Adapter* adapter, int32_t num_rows);
  // Rows that are of the adapter's own tokens, from this one on.
  void add_virtual_run(const Adapter* adapter, int32_t first_token, int32_t num_rows);
  // Whether any row has one. If not, the step is given no adapters at all.
  bool any() const { return !distinct_.empty() || !virtual_runs_.empty() || !given_keys_.empty(); }

  bool adapt(const nn::StepContext& step, const nn::AdaptableLayer& layer) const override;
  void add(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::ConstView& x,
           const ops::View& out) const override;
  void add_embedded(const nn::StepContext& step, const nn::AdaptableLayer& layer, Mirrored<TokenId> ids,
                    const ops::View& out) const override;
  void add_experts(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::ConstView& x,
                   const int32_t* offsets, const ops::View& out) const override;
  void add_heads(const nn::StepContext& step, const nn::AdaptableLayer& layer, int32_t first, int32_t num_heads,
                 const HeadRows& rows) const override;
  void give_keys(const nn::StepContext& step, const nn::CacheLayer& layer) const override;

 private:
  struct Run {
    const Adapter* adapter;
    int64_t row;
    int64_t num_rows;
  };
  const Adapter* of_row(const nn::StepContext& step, int64_t row) const;
  // A run in found_, or one row more of the last one.
  void add_row(const ops::LowRankRun& run) const;
  // Adds to found_ the runs of one of the layer's products, whose columns begin as said.
  struct Columns {
    int32_t expert = 0;
    int64_t x = 0;
    int64_t out = 0;
  };
  void find_runs(const nn::StepContext& step, const nn::AdaptableLayer& layer, int64_t num_rows, Columns columns) const;

  struct GivenKeys {
    const Adapter* adapter;
    int32_t first_token;
    int64_t row;
    int64_t num_rows;
  };
  std::vector<GivenKeys> given_keys_;
  std::vector<ops::LowRankRun> virtual_runs_;
  int32_t prompt_layer_ = -1;             // the embedding of tokens, if there are any of those
  std::vector<Run> runs_;                 // that have one
  std::vector<const Adapter*> of_token_;  // [num_tokens]
  std::vector<const Adapter*> distinct_;
  mutable std::vector<ops::LowRankRun> found_;  // of the call under way
};

}  // namespace quire::runner
