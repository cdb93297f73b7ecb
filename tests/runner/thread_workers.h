// Workers as threads of the test's process.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runner/worker.h"
#include "runner/worker_launcher.h"
#include "tests/runner/worker_steps.h"

namespace quire::runner {

class ThreadWorker final : public WorkerProcess {
 public:
  ThreadWorker(const WorkerSegment& segment, int rank, const MakeBackend& make_backend, std::chrono::milliseconds late)
      : thread_([this, segment, rank, make_backend, late] {
          std::this_thread::sleep_for(late);
          (void)run_worker(segment, rank, make_backend);
          ended_ = true;
        }) {}
  ~ThreadWorker() override { thread_.join(); }
  int id() const override { return 1; }
  std::optional<std::string> ended() override {
    return ended_ ? std::optional<std::string>("has ended") : std::nullopt;
  }

 private:
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// Keeps the segment of the last life, so that a test can do harm in it. late: until a worker begins.
class ThreadLauncher final : public WorkerLauncher {
 public:
  explicit ThreadLauncher(std::optional<WorkerSegment>& last, MakeBackend make_backend = workers_backend,
                          std::chrono::milliseconds late = {})
      : last_(last), make_backend_(std::move(make_backend)), late_(late) {}
  Result<std::unique_ptr<WorkerProcess>> launch(const comm::SharedSegment& memory, const WorkerSegment::Shape& shape,
                                                int rank) override {
    last_ = WorkerSegment(memory.data(), shape);
    return std::unique_ptr<WorkerProcess>(std::make_unique<ThreadWorker>(*last_, rank, make_backend_, late_));
  }

 private:
  std::optional<WorkerSegment>& last_;
  const MakeBackend make_backend_;
  const std::chrono::milliseconds late_;
};

}  // namespace quire::runner
