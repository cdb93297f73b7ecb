// A head guesses what a model says next, out of that one's own states (models/draft_head.h).
#pragma once

#include <memory>

#include "models/draft_head.h"
#include "runner/draft_runner.h"
#include "runner/model_drafts.h"

namespace quire::runner {

// The most that a model's states take until the head has read them.
int64_t waiting_bytes(const ModelConfig& head);

// runner: of the head; model: the head itself, which the runner owns. Errors: data_loss for a vocabulary that the
// checkpoint does not tell.
Result<std::unique_ptr<ModelDrafts>> make_head_drafts(DraftRunner runner, models::Model& model);

}  // namespace quire::runner
