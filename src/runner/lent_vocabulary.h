// The ends of a model whose layers are in other processes, for a head that guesses for it in this one: its embeddings
// and its head over the vocabulary, once more, and whole.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/model.h"
#include "ops/backend.h"
#include "types/engine_config.h"

namespace quire::runner {

struct LentVocabulary {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;
  std::unique_ptr<models::Model> model;  // embed() and logits() alone may be run
  int64_t bytes = 0;                     // of weights
};

// kPlan: nothing is read or can be run, but the configuration and the bytes. Errors: those of reading and planning the
// model. The backend must outlive it.
Result<LentVocabulary> lend_vocabulary(const EngineConfig& config, nn::Loader::Mode mode, ops::Backend& backend);

// What it takes of this process beside workers, from headers alone; reads: whether the head reads any of it. 0: there
// are no workers, or it reads nothing.
Result<int64_t> lent_bytes(const EngineConfig& config, bool reads, ops::Backend& backend);

}  // namespace quire::runner
