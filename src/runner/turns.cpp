#include "runner/turns.h"

#include <utility>

#include "runner/forwarding_executor.h"

namespace quire::runner {
namespace {

class TurnTakingExecutor final : public ForwardingExecutor {
 public:
  TurnTakingExecutor(std::unique_ptr<Executor> executor, std::shared_ptr<Turns> turns)
      : ForwardingExecutor(std::move(executor)), turns_(std::move(turns)) {}

  // Where an executor does its work that has no thread of its own and no device. What a device does it does in the
  // order of its queue: to submit to it takes no turn, so that steps are launched ahead while another model's is waited
  // for.
  Result<ExecutedStep> collect() override {
    const Turns::Turn turn(*turns_);
    return inner().collect();
  }

 private:
  const std::shared_ptr<Turns> turns_;
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
