// The adapters of one step's rows.
#pragma once

#include <optional>
#include <vector>

#include "nn/step_context.h"
#include "runner/adapter.h"
#include "runner/step_numbers.h"

namespace quire::runner {

// On a device that computes in the host's memory each product is given the runs of its rows. One with memory of its own
// is told once a step of every token's adapter (ops::LowRankRows), so that steps of other adapters replay the same
// recordings.
class StepAdapters final : public nn::RowAdapters {
 public:
  // max_rank: that an adapter's factors may have. most_tokens: of a step, for which memory is taken; more takes it when
  // it comes, at another place. The backend must outlive this.
  StepAdapters(ops::Backend& backend, int32_t max_rank, int64_t most_tokens);

  // Begins a batch. Runs follow in the order of its rows; nullptr: they have none.
  void clear();
  void add_run(const Adapter* adapter, int32_t num_rows);
  // Rows that are of the adapter's own tokens, from this one on.
  void add_virtual_run(const Adapter* adapter, int32_t first_token, int32_t num_rows);
  // Ends it: the batch has so many tokens, and those behind the runs have no adapter. In its turn with the ops.
  void upload(int64_t num_tokens);
  // Whether any row has one, whatever this rank has of it: ranks record and replay the same steps. If not, the step is
  // given no adapters at all.
  bool any() const { return !distinct_.empty() || has_virtual_rows_; }

  // Of a device with memory of its own: whether the step may be recorded, or replayed, and which recordings are of the
  // same calls: over 0, more with each kind of layer that an adapter is first seen to add to. Products of all that were
  // seen so far are called in every step of this.
  bool can_record() const { return given_keys_.empty(); }
  int32_t recording_version() const { return version_; }

  bool adapt(const nn::StepContext& step, const nn::AdaptableLayer& layer) const override;
  void add(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::ConstView& x,
           const ops::View& out) const override;
  void multiply(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::LinearArgs& product,
                const ops::ConstView& x, const ops::View& out) const override;
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
  void see(const Adapter* adapter);
  ops::LowRankRows rows_of(const nn::StepContext& step, const nn::AdaptableLayer& layer) const;
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

  // What add() has done; its runs are in found_.
  ops::LowRankArgs addition(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::ConstView& x,
                            const ops::View& out) const;

  struct GivenKeys {
    const Adapter* adapter;
    int32_t first_token;
    int64_t row;
    int64_t num_rows;
  };
  std::vector<GivenKeys> given_keys_;
  std::vector<ops::LowRankRun> virtual_runs_;
  int32_t prompt_layer_ = -1;             // the embedding of tokens, if there are any of those
  bool has_virtual_rows_ = false;         // of any adapter
  std::vector<Run> runs_;                 // that have one
  std::vector<const Adapter*> of_token_;  // [num_tokens]
  std::vector<const Adapter*> distinct_;
  mutable std::vector<ops::LowRankRun> found_;  // of the call under way

  // Of a device with memory of its own:
  bool on_device_ = false;
  int32_t max_rank_ = 0;
  StepNumbers numbers_;
  std::vector<const ops::LowRankFactors*> tables_;             // [num_tokens], nullptr: none
  const ops::LowRankFactors* const* device_tables_ = nullptr;  // there
  std::vector<uint64_t> seen_layers_;                          // a bit each, of all steps so far
  int32_t version_ = 1;
};

}  // namespace quire::runner
