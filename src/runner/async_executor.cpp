#include "runner/async_executor.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "runner/forwarding_executor.h"

namespace quire::runner {
namespace {

class AsyncExecutor final : public ForwardingExecutor {
 public:
  explicit AsyncExecutor(std::unique_ptr<Executor> executor)
      : ForwardingExecutor(std::move(executor)), thread_([this] { loop(); }) {}

  ~AsyncExecutor() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      bell_.notify_all();
    }
    thread_.join();
  }

  void bind_thread() override {}  // the thread that runs the steps is this one's own
  bool overlaps() const override { return true; }

  void submit(StepPlan plan) override {
    const std::lock_guard lock(mutex_);
    submitted_.push_back(std::move(plan));
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
    inner().bind_thread();
    std::unique_lock lock(mutex_);
    while (true) {
      bell_.wait(lock, [this] { return stopping_ || !submitted_.empty(); });
      if (stopping_) return;
      StepPlan plan = std::move(submitted_.front());
      submitted_.pop_front();
      lock.unlock();
      inner().submit(std::move(plan));
      Result<ExecutedStep> step = inner().collect();
      lock.lock();
      done_.push_back(std::move(step));
      bell_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable bell_;
  std::deque<StepPlan> submitted_;  // guarded by mutex_, like all below
  std::deque<Result<ExecutedStep>> done_;
  bool stopping_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

std::unique_ptr<Executor> make_async_executor(std::unique_ptr<Executor> executor) {
  return std::make_unique<AsyncExecutor>(std::move(executor));
}

}  // namespace quire::runner
