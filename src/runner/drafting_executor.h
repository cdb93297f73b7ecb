// What drafts beside workers (docs/distributed.md), a model or a head: it computes in the engine's process, on a
// backend of its own, whose threads are on the workers' cores until these are told of the next step. What it guesses
// travels with the plan; the states that a head goes on from come with the step's result.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "runner/executor.h"
#include "runner/hidden_store.h"
#include "runner/lent_vocabulary.h"
#include "runner/model_drafts.h"

namespace quire::runner {

// Destroyed from the last to the first.
struct DraftsBesideWorkers {
  std::unique_ptr<ops::Backend> backend;
  LentVocabulary vocabulary;  // what a head reads of the model; or nothing
  std::unique_ptr<ModelDrafts> drafts;
  std::shared_ptr<HiddenStore> store;  // nullptr: they read no states
};
// config: of the model that is guessed for. Errors: those of ModelDrafts::create() and attach().
Result<DraftsBesideWorkers> make_drafts_beside_workers(const EngineConfig& config,
                                                       std::unique_ptr<ops::Backend> backend);

// executor: of the workers, which give the states that drafts.store is of (EngineConfig::state_layers). Errors: those
// of check_vocabulary().
Result<std::unique_ptr<Executor>> make_drafting_executor(std::unique_ptr<Executor> executor,
                                                         DraftsBesideWorkers drafts);

}  // namespace quire::runner
