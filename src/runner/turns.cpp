#include "runner/turns.h"

#include <utility>

namespace quire::runner {
namespace {

class TurnTakingExecutor final : public Executor {
 public:
  TurnTakingExecutor(std::unique_ptr<Executor> executor, std::shared_ptr<Turns> turns)
      : turns_(std::move(turns)), executor_(std::move(executor)) {}

  const ModelConfig& model() const override { return executor_->model(); }
  const MemoryPlan& memory() const override { return executor_->memory(); }
  const TextSource& text() const override { return executor_->text(); }
  const std::string& description() const override { return executor_->description(); }
  void bind_thread() override { executor_->bind_thread(); }
  void submit(const StepPlan& plan) override { executor_->submit(plan); }
  // Where the executor below does its work, if it has no thread of its own.
  Result<ExecutedStep> collect() override {
    const Turns::Turn turn(*turns_);
    return executor_->collect();
  }

 private:
  const std::shared_ptr<Turns> turns_;
  const std::unique_ptr<Executor> executor_;
};

}  // namespace

Turns::Turn::Turn(Turns& turns) : turns_(turns) {
  std::unique_lock lock(turns_.mutex_);
  const uint64_t mine = turns_.next_++;
  turns_.changed_.wait(lock, [&] { return turns_.serving_ == mine; });
}

Turns::Turn::~Turn() {
  {
    const std::lock_guard lock(turns_.mutex_);
    ++turns_.serving_;
  }
  turns_.changed_.notify_all();
}

std::unique_ptr<Executor> make_turn_taking_executor(std::unique_ptr<Executor> executor, std::shared_ptr<Turns> turns) {
  return std::make_unique<TurnTakingExecutor>(std::move(executor), std::move(turns));
}

}  // namespace quire::runner
