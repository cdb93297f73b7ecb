// The compute threads of one engine: one worker a core, pinned where the system allows, spinning briefly for the next
// piece of work and then parked. The thread that calls run() is worker 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"

namespace quire {

// Logical cores this process may use: the affinity mask and the cgroup's cpu quota (rounded up), one an SMT pair.
// Never empty.
std::vector<int> usable_cores();

// "0-3,8" to {0, 1, 2, 3, 8}; nothing to nothing. Errors: invalid_argument for anything else, for a core named twice
// and for one that this process may not use.
Result<std::vector<int>> parse_core_list(std::string_view text);

// Keeps the calling thread, and threads that it starts from now on, to these cores; none: changes nothing. Where the
// system refuses, nothing changes.
void keep_to_cores(const std::vector<int>& cores);

// How much of a core is left to a thread where another wants it too.
enum class GivesWay {
  kSomewhat,  // a quarter: for what somebody waits for, though not with every token
  kMuch,      // a tenth: for what takes long, beside what follows from it
  kAll,       // a sixtieth: for what nobody waits for
};

// The system's number of the calling thread.
int32_t this_thread_number();

// Lets the others go first: a thread of this process, from now on. It cannot be taken back, nor made less. Where the
// system refuses, nothing changes. Any thread.
void give_way_to_other_threads(GivesWay how, int32_t thread = this_thread_number());

struct ThreadPoolOptions {
  int num_threads = 0;          // 0: as many as there are cores
  std::vector<int> cores = {};  // to pin workers to; empty: usable_cores()
  bool pin = true;              // workers 1.. to a core each; the calling thread by bind_caller()
  int spin_microseconds = 200;  // longer than the time between two steps
};

class ThreadPool {
 public:
  explicit ThreadPool(ThreadPoolOptions options = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Binds the calling thread to the core that the workers leave free. For a thread that is to call run() all its life:
  // one that the system puts onto a worker's core takes turns with it, each waiting for the other.
  void bind_caller();

  // Runs body(thread) once on every worker and returns when all are done. One caller at a time; not re-entrant.
  void run(FunctionRef<void(int thread)> body);

  // For a body of run(): returns when all workers have called it as often as this one, and what they wrote before is
  // there. Takes a fraction of what it takes to end one run() and begin the next.
  void meet();

  // For a body of run(): returns when ready() is true, which what other workers do makes it.
  void wait_until(FunctionRef<bool()> ready);

  // Runs body(task, thread) for each task in [0, num_tasks), handed out one at a time in rising order to whichever
  // worker is free. Which worker runs a task must not change its result.
  void parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task, int thread)> body);

  // Cuts [0, size) into ranges and runs body(begin, end, thread) for each: first three quarters of it, in as many equal
  // ranges as there are threads, always the same to the same thread (so that what a thread touched first, it finds near
  // by again); then the rest, in ranges that become shorter, to whichever thread is free. Which worker runs a range
  // must not change its result.
  void parallel_ranges(int64_t size, FunctionRef<void(int64_t begin, int64_t end, int thread)> body);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
