// Work that cannot be stopped, on a thread that can be left to it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

namespace quire {

// Used by one thread at a time.
class LeavableThread {
 public:
  LeavableThread() = default;
  ~LeavableThread();
  LeavableThread(const LeavableThread&) = delete;
  LeavableThread& operator=(const LeavableThread&) = delete;

  // Runs work() on the thread and waits: the processor seconds that it took. nullopt: it took more than `most_seconds`
  // and goes on by itself, at the lowest priority; another thread is there for what follows. `work` owns all that it
  // touches, and throws nothing.
  std::optional<double> run(std::function<void()> work, double most_seconds);

  // Threads of this process that were left and still work.
  static int num_left();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;  // null: no thread yet
  std::thread thread_;
};

}  // namespace quire
