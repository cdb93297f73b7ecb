// Heads of Medusa guess what a model says next, each the token at a place of its own, out of one of that model's states
// (models/medusa.h).
#pragma once

#include <memory>

#include "ops/backend.h"
#include "runner/model_drafts.h"
#include "types/engine_config.h"

namespace quire::runner {

// config: of the model that is guessed for; its speculative_config names the heads' folder. Errors: those of reading
// and planning the heads. The backend must outlive it.
Result<DraftMemory> plan_medusa_memory(const EngineConfig& config, ops::Backend& backend);
Result<std::unique_ptr<ModelDrafts>> make_medusa_drafts(const EngineConfig& config, ops::Backend& backend);

}  // namespace quire::runner
