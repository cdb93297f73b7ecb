// A head guesses what a model says next, out of that one's own states (models/draft_head.h).
#pragma once

#include <memory>
#include <unordered_map>

#include "models/draft_head.h"
#include "runner/draft_runner.h"
#include "runner/model_drafts.h"

namespace quire::runner {

// The most that a model's states take until the head has read them.
int64_t waiting_bytes(const ModelConfig& head);

// What all heads that keep keys and values have in common: they read the model's states out of a store, and know a text
// from some position on. States that nobody has computed (of blocks that the prefix cache had) and those that nobody
// read in time are missing: the head then knows the text from there on, with positions counted from there, as rotation
// sees differences alone.
class StateDrafts : public ModelDrafts {
 public:
  int64_t vocab_size() const override { return runner_.planned().config.vocab_size; }
  int64_t pool_bytes() const override {
    return runner_.planned().memory.kv_bytes + waiting_bytes(runner_.planned().config);
  }
  // The states that wait are those of rows that the head has not computed.
  double seconds_before(const DraftText& text) const override;
  bool computes() const override { return true; }
  Result<std::shared_ptr<HiddenStore>> attach(const models::Model& model) override;
  bool reads_model() const override { return head_.reads_target(); }
  void ended(const DraftText& text) override;

 protected:
  // runner: of the head, on this backend; it owns `head`.
  StateDrafts(DraftRunner runner, models::DraftHead& head, ops::Backend& backend);

  // The position of the head's first row of a text of which it can have rows before `end`: those that it has computed
  // as far as they lie there, and the states that wait. Where rows that are still to be computed lie before those, the
  // runner forgets the text, and it begins anew. known: the text as the runner has it. REQUIRES: attach().
  int32_t begin_of(SequenceId id, int32_t end, DraftRunner::Text& known);

  // Rows for the head's next step, from the host to where it reads them, until the next call.
  const float* on_device(const float* rows, int64_t num_floats);

  DraftRunner runner_;
  models::DraftHead& head_;
  ops::Backend& backend_;
  models::HeadRows rows_;
  std::shared_ptr<HiddenStore> store_;  // once it is attached

 private:
  std::unordered_map<SequenceId, int32_t> begins_;  // the positions of texts' first rows
  Buffer given_;                                    // of a device with memory of its own: the largest step's rows
};

// runner: of the head, on this backend; model: the head itself, which the runner owns. Errors: data_loss for a
// vocabulary that the checkpoint does not tell.
Result<std::unique_ptr<ModelDrafts>> make_head_drafts(DraftRunner runner, models::Model& model, ops::Backend& backend);

}  // namespace quire::runner
