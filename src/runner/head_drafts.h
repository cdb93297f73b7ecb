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

// From where on heads know texts: states that nobody has computed (of blocks that the prefix cache had) and those that
// nobody read in time are missing, and a head then knows the text from there on, with positions counted from there, as
// rotation sees differences alone.
class TextBegins {
 public:
  // The position of the head's first row of a text, whose states from `waiting` on are there. Where rows of it that
  // are still to be computed lie before that, the runner forgets it, and it begins anew.
  int32_t settle(SequenceId id, int32_t waiting, DraftRunner& runner, DraftRunner::Text& known);
  // That of a text of settle(); 0 for others.
  int32_t of(SequenceId id) const;
  void ended(SequenceId id) { begins_.erase(id); }

 private:
  std::unordered_map<SequenceId, int32_t> begins_;
};

// The store of the states that a head reads of a model, which lends it what it has not itself. Errors: invalid_argument
// for a model that the head was not made for.
Result<std::shared_ptr<HiddenStore>> store_for(models::DraftHead& head, const models::Model& model);

// runner: of the head; model: the head itself, which the runner owns. Errors: data_loss for a vocabulary that the
// checkpoint does not tell.
Result<std::unique_ptr<ModelDrafts>> make_head_drafts(DraftRunner runner, models::Model& model);

}  // namespace quire::runner
