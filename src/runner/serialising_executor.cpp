#include "runner/serialising_executor.h"

#include <string>
#include <utility>

#include "runner/forwarding_executor.h"
#include "runner/plan_codec.h"
#include "runner/remote_masks.h"

namespace quire::runner {
namespace {

class SerialisingExecutor final : public ForwardingExecutor {
 public:
  explicit SerialisingExecutor(std::unique_ptr<Executor> executor) : ForwardingExecutor(std::move(executor)) {}

  void use_constraints(std::shared_ptr<const ConstraintSource> constraints) override {
    const auto server = std::make_shared<MaskServer>(std::move(constraints));
    inner().use_constraints(
        make_remote_constraints([server](std::string_view question) { return server->answer(question); }));
  }

  void order(OffloadOrders orders) override { inner().order(decode_orders(encode(orders)).value()); }
  OffloadReports take_reports() override { return decode_reports(encode(inner().take_reports())).value(); }

  void submit(StepPlan plan) override {
    const std::string message = writer_.write(plan);
    plan = StepPlan();
    inner().submit(reader_.read(message).value());
  }

  Result<ExecutedStep> collect() override {
    const std::string message = encode(inner().collect());
    QUIRE_ASSIGN_OR_RETURN(Result<ExecutedStep> step, decode_step(message));
    return step;
  }

 private:
  PlanWriter writer_;
  PlanReader reader_;
};

}  // namespace

std::unique_ptr<Executor> make_serialising_executor(std::unique_ptr<Executor> executor) {
  return std::make_unique<SerialisingExecutor>(std::move(executor));
}

}  // namespace quire::runner
