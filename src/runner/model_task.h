// What a model is served for, and what is made of its hidden states: by its files and by what the user chose.
#pragma once

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "types/engine_config.h"
#include "types/model_config.h"

namespace quire::runner {

// Fills in task, pooling, default_context and, where the files say so, attends_both_ways. Files of
// sentence-transformers go before the keys of a GGUF file, and these before what is usual: the first token of encoders,
// the last of decoders. Errors: invalid_argument where the choices do not fit the model, or a file says what cannot be;
// unimplemented naming a pooling, or a module behind it, that is not built.
Status choose_task(const EngineConfig& config, const checkpoint::Checkpoint& checkpoint, models::FamilyRole role,
                   ModelConfig& model);

// Whether a model with segments is told where a pair's second text begins: as the reference has it, where its tokenizer
// names that input, and else where the tokenizer is of a class that does.
bool tells_segments(const checkpoint::Checkpoint& checkpoint);

}  // namespace quire::runner
