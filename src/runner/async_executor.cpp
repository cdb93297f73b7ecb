#include "runner/async_executor.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/check.h"

namespace quire::runner {
namespace {

class AsyncExecutor final : public Executor {
 public:
  explicit AsyncExecutor(std::unique_ptr<Executor> executor)
      : executor_(std::move(executor)), thread_([this] { loop(); }) {}

  ~AsyncExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      bell_.notify_all();
    }
    thread_.join();
  }

  const ModelConfig& model() const override { return executor_->model(); }
  const MemoryPlan& memory() const override { return executor_->memory(); }
  const TextSource& text() const override { return executor_->text(); }
  const std::string& description() const override { return executor_->description(); }

  void submit(const StepPlan& plan) override {
    const std::lock_guard lock(mutex_);
    submitted_.push_back(&plan);
    bell_.notify_all();
  }

  Result<ExecutedStep> collect() override {
    std::unique_lock lock(mutex_);
    bell_.wait(lock, [this] { return !done_.empty(); });
    Result<ExecutedStep> step = std::move(done_.front());
    done_.pop_front();
    return step;
  }

 private:
  void loop() {
    executor_->bind_thread();
    std::unique_lock lock(mutex_);
    while (true) {
      bell_.wait(lock, [this] { return stopping_ || !submitted_.empty(); });
      if (stopping_) return;
      const StepPlan& plan = *submitted_.front();
      submitted_.pop_front();
      lock.unlock();
      executor_->submit(plan);
      Result<ExecutedStep> step = executor_->collect();
      lock.lock();
      done_.push_back(std::move(step));
      bell_.notify_all();
    }
  }

  const std::unique_ptr<Executor> executor_;
  std::mutex mutex_;
  std::condition_variable bell_;
  std::deque<const StepPlan*> submitted_;  // guarded by mutex_, like all below
  std::deque<Result<ExecutedStep>> done_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<Executor> make_async_executor(std::unique_ptr<Executor> executor) {
  return std::make_unique<AsyncExecutor>(std::move(executor));
}

}  // namespace quire::runner
