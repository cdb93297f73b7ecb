#include "runner/drafting_executor.h"

#include <utility>

#include "runner/forwarding_executor.h"

namespace quire::runner {
namespace {

class DraftingExecutor final : public ForwardingExecutor {
 public:
  DraftingExecutor(std::unique_ptr<Executor> executor, std::unique_ptr<ops::Backend> backend,
                   std::unique_ptr<ModelDrafts> drafts)
      : ForwardingExecutor(std::move(executor)), backend_(std::move(backend)), drafts_(std::move(drafts)) {}

  std::unique_ptr<DraftProposer> take_draft_model() override { return std::move(drafts_); }

 private:
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<ModelDrafts> drafts_;  // nullptr: it was taken
};

}  // namespace

Result<std::unique_ptr<Executor>> make_drafting_executor(std::unique_ptr<Executor> executor,
                                                         std::unique_ptr<ops::Backend> backend,
                                                         std::unique_ptr<ModelDrafts> drafts) {
  QUIRE_RETURN_IF_ERROR(check_vocabulary(*drafts, executor->model()));
  return std::unique_ptr<Executor>(
      std::make_unique<DraftingExecutor>(std::move(executor), std::move(backend), std::move(drafts)));
}

}  // namespace quire::runner
