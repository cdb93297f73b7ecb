// What executors that wrap another have in common: whatever they do not change is the other's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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
  std::shared_ptr<AdapterStore> adapters() override { return executor_->adapters(); }
  std::shared_ptr<RankAdapters> rank_adapters() override { return executor_->rank_adapters(); }
  std::unique_ptr<DraftProposer> take_draft_model() override { return executor_->take_draft_model(); }
  std::vector<StoredBlock> take_stored() override { return executor_->take_stored(); }
  void order(OffloadOrders orders) override { executor_->order(std::move(orders)); }
  OffloadReports take_reports() override { return executor_->take_reports(); }
  void on_reports(std::function<void()> notify) override { executor_->on_reports(std::move(notify)); }
  bool overlaps() const override { return executor_->overlaps(); }
  void submit(StepPlan plan) override { executor_->submit(std::move(plan)); }
  Result<ExecutedStep> collect() override { return executor_->collect(); }
  Status status() const override { return executor_->status(); }
  void on_failure(std::function<void()> notify) override { executor_->on_failure(std::move(notify)); }
  bool can_recover() const override { return executor_->can_recover(); }
  Status recover() override { return executor_->recover(); }

 protected:
  explicit ForwardingExecutor(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}
  Executor& inner() { return *executor_; }

 private:
  const std::unique_ptr<Executor> executor_;
};

}  // namespace quire::runner
