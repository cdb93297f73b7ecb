// A head guesses a block of what a model says next in one pass, out of that one's states (models/dflash.h).
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "models/model.h"
#include "ops/backend.h"
#include "runner/draft_runner.h"
#include "runner/model_drafts.h"
#include "types/speculative_config.h"

namespace quire::runner {

// How many tokens are guessed at a time: as many as are asked for, else those of the head's blocks. Errors:
// invalid_argument for more than a block holds beside the text's last token.
Result<int32_t> block_tokens(const SpeculativeConfig& config, const ModelConfig& head);

// Memory of the logits of so many tokens.
int64_t block_logit_bytes(const ModelConfig& head, int32_t tokens);

// runner: of the head; model: the head itself, which the runner owns. The backend must outlive it. Errors:
// invalid_argument as block_tokens(); resource_exhausted.
Result<std::unique_ptr<ModelDrafts>> make_block_drafts(const SpeculativeConfig& config, DraftRunner runner,
                                                       models::Model& model, ops::Backend& backend);

}  // namespace quire::runner
