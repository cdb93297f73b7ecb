// What one request may take of a worker's time before the engine has it: templates, tokenizing, and all of that again
// where messages are dropped until a prompt fits. Few threads prepare the requests of all clients.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/status.h"
#include "base/thread_clock.h"

namespace quire::server {

// By the processor time of the thread that makes it, which alone asks it: other work on the machine costs nobody his
// request.
class PreparationBudget {
 public:
  explicit PreparationBudget(std::chrono::milliseconds most)
      : most_(most), end_(thread_seconds() + std::chrono::duration<double>(most).count()) {}

  bool is_over() const { return thread_seconds() >= end_; }
  std::chrono::milliseconds left() const {
    return std::chrono::milliseconds(static_cast<int64_t>(std::max(end_ - thread_seconds(), 0.0) * 1000));
  }
  // Errors: invalid_argument.
  Status check() const {
    if (!is_over()) return {};
    return invalid_argument(
        "Preparing this request took more than {} ms of processor time (--preparation-timeout). Send less text, or "
        "fewer prompts or messages at once.",
        most_.count());
  }

 private:
  std::chrono::milliseconds most_;
  double end_;
};

}  // namespace quire::server
