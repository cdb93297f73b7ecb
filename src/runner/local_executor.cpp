#include "runner/local_executor.h"

#include <chrono>
#include <deque>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "runner/model_runner.h"
#include "runner/open_checkpoint.h"
#include "runner/worst_step.h"

namespace quire::runner {
namespace {

class LocalExecutor final : public Executor {
 public:
  LocalExecutor(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, std::unique_ptr<ops::Backend> backend,
                PlannedModel planned, std::unique_ptr<ModelRunner> runner)
      : checkpoint_(std::move(checkpoint)),
        backend_(std::move(backend)),
        planned_(std::move(planned)),
        runner_(std::move(runner)),
        description_(backend_->description()) {}

  const ModelConfig& model() const override { return planned_.config; }
  const MemoryPlan& memory() const override { return planned_.memory; }
  const std::string& description() const override { return description_; }
  void bind_thread() override { backend_->bind_thread(); }
  void use_constraints(std::shared_ptr<const ConstraintSource> constraints) override {
    runner_->use_constraints(std::move(constraints));
  }
  bool overlaps() const override { return !backend_->computes_in_host_memory(); }
  void submit(StepPlan plan) override {
    submitted_.push_back(std::move(plan));
    if (overlaps()) launch_ready();
  }
  Result<ExecutedStep> collect() override {
    if (!runner_->any_under_way()) launch();
    if (overlaps()) {
      runner_->choose();
      launch_ready();
    }
    ExecutedStep step = runner_->finish();
    if (overlaps()) launch_ready();
    return step;
  }

 private:
  void launch() {
    QUIRE_CHECK(!submitted_.empty());
    runner_->launch(std::move(submitted_.front()));
    submitted_.pop_front();
  }
  void launch_ready() {
    while (!submitted_.empty() && runner_->may_launch()) launch();
  }

  // Destroyed from the last to the first: the runner's buffers go before the backend that gave them.
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<ops::Backend> backend_;
  PlannedModel planned_;
  std::unique_ptr<ModelRunner> runner_;
  std::string description_;
  std::deque<StepPlan> submitted_;  // and not launched
};

// Says how far the weights are, when that takes long.
class LoadProgress {
 public:
  explicit LoadProgress(int64_t total_bytes) : total_bytes_(total_bytes) {}

  void operator()(int64_t bytes) {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ < kEvery) return;
    told_ = now;
    const double seconds = std::chrono::duration<double>(now - begun_).count();
    log_info("weights: {} of {} in {:.0f} s, {}/s", format_bytes(bytes), format_bytes(total_bytes_), seconds,
             format_bytes(static_cast<int64_t>(static_cast<double>(bytes) / seconds)));
  }

 private:
  static constexpr std::chrono::seconds kEvery{3};

  int64_t total_bytes_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point told_ = begun_;
};

}  // namespace

Result<std::unique_ptr<Executor>> make_local_executor(const EngineConfig& config,
                                                      std::unique_ptr<ops::Backend> backend) {
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const checkpoint::Checkpoint> checkpoint, open_checkpoint(config));
  const int64_t free_bytes = backend->free_memory();
  QUIRE_ASSIGN_OR_RETURN(PlannedModel planned, plan_model(config, *checkpoint, *backend, free_bytes));
  if (!planned.memory.converted_weights.empty()) {
    log_info("--dtype {}: {}", name(config.dtype), planned.memory.converted_weights);
  }
  if (!planned.memory.widened_weights.empty())
    log_info("weights in a form for products: {}", planned.memory.widened_weights);
  nn::Loader loader(nn::Loader::Mode::kLoad, *checkpoint, *backend, planned.quantization, planned.weight_dtype);
  loader.tell(LoadProgress(planned.memory.weight_bytes));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<models::Model> model,
                         planned.family.build(planned.config, planned.max_model_len, loader));
  planned.memory.quantization = loader.quantized().to_string();
  if (!backend->computes_in_host_memory()) {
    QUIRE_ASSIGN_OR_RETURN(model, measure_on_device(std::move(model), free_bytes, planned, *backend));
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<ModelRunner> runner, ModelRunner::create(planned, std::move(model), *backend));
  runner->record_steps();
  if (planned.memory.num_swap_blocks > 0) planned.memory.seconds_per_swapped_block = runner->measure_swap();
  return std::unique_ptr<Executor>(
      new LocalExecutor(std::move(checkpoint), std::move(backend), std::move(planned), std::move(runner)));
}

}  // namespace quire::runner
