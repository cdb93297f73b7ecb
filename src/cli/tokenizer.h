// A tokenizer by itself, without the model.
#pragma once

#include <memory>

#include "base/status.h"
#include "cli/hub_options.h"
#include "text/tokenizer.h"
#include "types/engine_config.h"

namespace quire::cli {

// Of config.model: a checkpoint, a GGUF with a vocabulary alone, a tokenizer.json or a directory that holds one; empty:
// the default model. Errors: not_found; what the files have wrong.
Result<std::unique_ptr<text::Tokenizer>> load_tokenizer(EngineConfig& config, const HubFlags& hub);

}  // namespace quire::cli
