#include "runner/drafting_executor.h"

#include <deque>
#include <utility>

#include "base/log.h"
#include "runner/forwarding_executor.h"

namespace quire::runner {
namespace {

class DraftingExecutor final : public ForwardingExecutor {
 public:
  DraftingExecutor(std::unique_ptr<Executor> executor, DraftsBesideWorkers drafts)
      : ForwardingExecutor(std::move(executor)), drafts_(std::move(drafts)), memory_(inner().memory()) {
    memory_.most_draft_tokens = drafts_.drafts->most_tokens();
  }

  const MemoryPlan& memory() const override { return memory_; }
  // A CPU's threads stay off the workers' cores.
  void bind_thread() override {
    ForwardingExecutor::bind_thread();
    if (!drafts_.backend->computes_in_host_memory()) drafts_.backend->bind_thread();
  }
  std::unique_ptr<DraftProposer> take_draft_model() override { return std::move(drafts_.drafts); }

  void submit(StepPlan plan) override {
    if (drafts_.store != nullptr) submitted_.push_back(StepRows::of(plan));
    inner().submit(std::move(plan));
  }
  Result<ExecutedStep> collect() override {
    Result<ExecutedStep> step = inner().collect();
    if (drafts_.store == nullptr || !step.ok()) return step;
    QUIRE_RETURN_IF_ERROR(drafts_.store->settle(submitted_.front(), step->states));
    submitted_.pop_front();
    return step;
  }
  // The states that wait are still those of their tokens.
  Status recover() override {
    submitted_.clear();
    return inner().recover();
  }

 private:
  DraftsBesideWorkers drafts_;  // its drafts nullptr: they were taken
  MemoryPlan memory_;
  std::deque<StepRows> submitted_;  // and not collected, where there is a store
};

}  // namespace

Result<DraftsBesideWorkers> make_drafts_beside_workers(const EngineConfig& config,
                                                       std::unique_ptr<ops::Backend> backend) {
  DraftsBesideWorkers made{.backend = std::move(backend)};
  QUIRE_ASSIGN_OR_RETURN(made.drafts, ModelDrafts::create(config, *made.backend));
  if (!is_head(config.speculative_config.method)) return made;
  const bool reads = made.drafts->reads_model();
  const auto mode = reads ? nn::Loader::Mode::kLoad : nn::Loader::Mode::kPlan;
  QUIRE_ASSIGN_OR_RETURN(made.vocabulary, lend_vocabulary(config, mode, *made.backend));
  QUIRE_ASSIGN_OR_RETURN(made.store, made.drafts->attach(*made.vocabulary.model));
  if (!reads) return made;
  log_info("the model's embeddings and head over the vocabulary, which the head that drafts reads: {}",
           format_bytes(made.vocabulary.bytes));
  return made;
}

Result<std::unique_ptr<Executor>> make_drafting_executor(std::unique_ptr<Executor> executor,
                                                         DraftsBesideWorkers drafts) {
  QUIRE_RETURN_IF_ERROR(check_vocabulary(*drafts.drafts, executor->model()));
  return std::unique_ptr<Executor>(std::make_unique<DraftingExecutor>(std::move(executor), std::move(drafts)));
}

}  // namespace quire::runner
