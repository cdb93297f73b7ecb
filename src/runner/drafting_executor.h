// A model that drafts beside workers (docs/distributed.md): it computes in the engine's process, on a backend of its
// own, whose threads are on the workers' cores until these are told of the next step. What it guesses travels with the
// plan.
#pragma once

#include <memory>

#include "ops/backend.h"
#include "runner/executor.h"
#include "runner/model_drafts.h"

namespace quire::runner {

// executor: of the workers; drafts: on this backend. Errors: those of check_vocabulary().
Result<std::unique_ptr<Executor>> make_drafting_executor(std::unique_ptr<Executor> executor,
                                                         std::unique_ptr<ops::Backend> backend,
                                                         std::unique_ptr<ModelDrafts> drafts);

}  // namespace quire::runner
