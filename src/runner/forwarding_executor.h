// What executors that wrap another have in common: whatever they do not change is the other's.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "runner/executor.h"

namespace quire::runner {

class ForwardingExecutor : public Executor {
 public:
  const ModelConfig& model() const override { return executor_->model(); }
  const MemoryPlan& memory() const override { return executor_->memory(); }
  const std::string& description() const override { return executor_->description(); }
  void bind_thread() override { executor_->bind_thread(); }
  void use_constraints(std::shared_ptr<const ConstraintSource> constraints) override {
    executor_->use_constraints(std::move(constraints));
  }
  bool overlaps() const override { return executor_->overlaps(); }
  void submit(StepPlan plan) override { executor_->submit(std::move(plan)); }
  Result<ExecutedStep> collect() override { return executor_->collect(); }

 protected:
  explicit ForwardingExecutor(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}
  Executor& inner() { return *executor_; }

 private:
  const std::unique_ptr<Executor> executor_;
};

}  // namespace quire::runner
