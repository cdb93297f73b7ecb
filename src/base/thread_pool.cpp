#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "base/check.h"
#include "base/number_ranges.h"

namespace quire {
namespace {

// Processors' worth of time that the control group at `directory` grants, by cgroup v2 or v1 files; nullopt: no limit.
std::optional<double> group_quota(const std::string& directory) {
  if (std::ifstream file(directory + "/cpu.max"); file) {
    std::string quota;
    double period = 0;
    if (file >> quota >> period && quota != "max" && period > 0) {
      return std::strtod(quota.c_str(), nullptr) / period;
    }
    return std::nullopt;
  }
  double quota = 0;
  double period = 0;
  std::ifstream quota_file(directory + "/cpu.cfs_quota_us");
  std::ifstream period_file(directory + "/cpu.cfs_period_us");
  if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) return quota / period;
  return std::nullopt;
}

// The tightest quota of this process's control group and its ancestors.
std::optional<double> cpu_quota() {
  std::optional<double> tightest;
  const auto consider = [&tightest](const std::string& directory) {
    if (auto quota = group_quota(directory)) tightest = std::min(tightest.value_or(*quota), *quota);
  };
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_v1_cpu = controllers == "cpu" || controllers == "cpu,cpuacct" || controllers == "cpuacct,cpu";
    if (!controllers.empty() && !is_v1_cpu) continue;
    const std::string root = "/sys/fs/cgroup" + (is_v1_cpu ? "/" + controllers : std::string());
    std::string path = line.substr(second + 1);
    while (!path.empty() && path != "/") {
      consider(root + path);
      path.resize(path.rfind('/'));
    }
    consider(root);
  }
  return tightest;
}

// The lowest-numbered logical core that shares the physical core of `core`.
int first_sibling(int core) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(core) + "/topology/thread_siblings_list");
  int first = core;
  if (file >> first) return first;
  return core;
}

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    std::set<int> physical;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &mask) && physical.insert(first_sibling(core)).second) cores.push_back(core);
    }
  }
  if (cores.empty()) cores.push_back(0);
  if (const auto quota = cpu_quota()) {
    const size_t granted = static_cast<size_t>(std::max(1.0, std::ceil(*quota)));
    if (granted < cores.size()) cores.resize(granted);
  }
  return cores;
}

Result<std::vector<int>> parse_core_list(std::string_view text) {
  std::vector<int> cores;
  const auto wrong = [&](std::string_view what) {
    return invalid_argument("the list of cores \"{}\" {}: expected numbers and ranges, as in 0-3,8", text, what);
  };
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool known = sched_getaffinity(0, sizeof(mask), &mask) == 0;
  const auto ranges = parse_number_ranges(text, CPU_SETSIZE);
  if (!ranges) return wrong("is not one");
  for (const auto& [first, last] : *ranges) {
    for (int core = first; core <= last; ++core) {
      if (std::find(cores.begin(), cores.end(), core) != cores.end()) return wrong("names a core twice");
      if (known && !CPU_ISSET(core, &mask)) return wrong(fmt::format("names core {}, not open to this process", core));
      cores.push_back(core);
    }
  }
  if (!text.empty() && text.back() == ',') return wrong("ends with a comma");
  return cores;
}

namespace {

// A sandbox may forbid it; the pool works all the same.
void pin(pthread_t thread, int core) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(core, &mask);
  pthread_setaffinity_np(thread, sizeof(mask), &mask);
}

}  // namespace

// A run is announced by a new generation number. Sleepers are woken only when there are any: whoever goes to sleep
// first raises its flag and then looks again at what it waits for, and whoever changes that looks at the flag
// afterwards; all four accesses are sequentially consistent, so one of the two sees the other.
struct ThreadPool::State {
  int num_threads = 1;
  std::chrono::microseconds spin{};

  alignas(64) std::atomic<uint64_t> generation{0};
  alignas(64) std::atomic<int> unfinished{0};
  alignas(64) std::atomic<int64_t> next_task{0};
  alignas(64) std::atomic<uint64_t> met{0};  // calls of meet() so far
  alignas(64) std::atomic<int> parked_workers{0};
  std::atomic<bool> parked_caller{false};
  std::atomic<bool> busy{false};
  std::atomic<bool> stopping{false};
  const FunctionRef<void(int)>* body = nullptr;  // written before generation rises

  int caller_core = -1;  // of the thread that calls run(); -1: any

  std::mutex mutex;
  std::condition_variable work_ready;
  std::condition_variable work_done;
  std::vector<std::thread> workers;

  // True when `ready` came true within the spinning time.
  template <typename Ready>
  bool spin_until(const Ready& ready) const {
    constexpr int kPausesBetweenClockReads = 64;
    const auto deadline = std::chrono::steady_clock::now() + spin;
    do {
      for (int i = 0; i < kPausesBetweenClockReads; ++i) {
        if (ready()) return true;
        relax();
      }
    } while (std::chrono::steady_clock::now() < deadline);
    return false;
  }

  void work(int thread) {
    uint64_t seen = 0;
    while (true) {
      const auto changed = [&] { return generation.load(std::memory_order_acquire) != seen; };
      if (!spin_until(changed)) {
        std::unique_lock lock(mutex);
        parked_workers.fetch_add(1);
        work_ready.wait(lock, [&] { return generation.load() != seen; });
        parked_workers.fetch_sub(1);
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_relaxed)) return;
      (*body)(thread);
      if (unfinished.fetch_sub(1) == 1 && parked_caller.load()) {
        const std::lock_guard lock(mutex);
        work_done.notify_one();
      }
    }
  }

  void announce() {
    generation.fetch_add(1);
    if (parked_workers.load() > 0) {
      const std::lock_guard lock(mutex);
      work_ready.notify_all();
    }
  }

  void wait_for_workers() {
    const auto done = [&] { return unfinished.load(std::memory_order_acquire) == 0; };
    if (spin_until(done)) return;
    std::unique_lock lock(mutex);
    parked_caller.store(true);
    work_done.wait(lock, [&] { return unfinished.load() == 0; });
    parked_caller.store(false);
  }
};

ThreadPool::ThreadPool(ThreadPoolOptions options) : state_(std::make_unique<State>()) {
  QUIRE_CHECK(options.num_threads >= 0);
  const std::vector<int> cores = options.cores.empty() ? usable_cores() : options.cores;
  state_->num_threads = options.num_threads > 0 ? options.num_threads : static_cast<int>(cores.size());
  // With more threads than cores a spinning thread keeps the one that it waits for off the core.
  const bool oversubscribed = state_->num_threads > static_cast<int>(cores.size());
  state_->spin = std::chrono::microseconds(oversubscribed ? 0 : options.spin_microseconds);
  for (int thread = 1; thread < state_->num_threads; ++thread) {
    state_->workers.emplace_back([state = state_.get(), thread] { state->work(thread); });
    const std::string thread_name = "quire-" + std::to_string(thread);
    pthread_setname_np(state_->workers.back().native_handle(), thread_name.c_str());
    if (options.pin && !oversubscribed) pin(state_->workers.back().native_handle(), cores[static_cast<size_t>(thread)]);
  }
  if (options.pin && !oversubscribed && state_->num_threads > 1) state_->caller_core = cores[0];
}

ThreadPool::~ThreadPool() {
  state_->stopping.store(true);
  state_->announce();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::num_threads() const {
  return state_->num_threads;
}

void ThreadPool::bind_caller() {
  if (state_->caller_core >= 0) pin(pthread_self(), state_->caller_core);
}

void ThreadPool::run(FunctionRef<void(int thread)> body) {
  State& state = *state_;
  QUIRE_CHECK_MSG(!state.busy.exchange(true, std::memory_order_acquire),
                  "ThreadPool::run() inside or beside another run()");
  if (state.num_threads > 1) {
    state.body = &body;
    state.unfinished.store(state.num_threads - 1, std::memory_order_relaxed);
    state.announce();
  }
  body(0);
  if (state.num_threads > 1) state.wait_for_workers();
  state.busy.store(false, std::memory_order_release);
}

void ThreadPool::meet() {
  State& state = *state_;
  const auto threads = static_cast<uint64_t>(state.num_threads);
  // Nobody calls for the next time before all have for this one.
  const uint64_t all = (state.met.fetch_add(1, std::memory_order_acq_rel) / threads + 1) * threads;
  const auto complete = [&] { return state.met.load(std::memory_order_acquire) >= all; };
  wait_until(complete);
}

void ThreadPool::wait_until(FunctionRef<bool()> ready) {
  while (!state_->spin_until(ready)) std::this_thread::yield();
}

void ThreadPool::parallel_for(int64_t num_tasks, FunctionRef<void(int64_t task, int thread)> body) {
  if (num_tasks <= 0) return;
  State& state = *state_;
  state.next_task.store(0, std::memory_order_relaxed);
  run([&](int thread) {
    while (true) {
      const int64_t task = state.next_task.fetch_add(1, std::memory_order_relaxed);
      if (task >= num_tasks) return;
      body(task, thread);
    }
  });
}

void ThreadPool::parallel_ranges(int64_t size, FunctionRef<void(int64_t begin, int64_t end, int thread)> body) {
  if (size <= 0) return;
  State& state = *state_;
  const int64_t threads = state.num_threads;
  const int64_t fixed = size * 3 / 4 / threads;  // of each thread
  state.next_task.store(fixed * threads, std::memory_order_relaxed);
  run([&](int thread) {
    if (fixed > 0) body(thread * fixed, (thread + 1) * fixed, thread);
    int64_t begin = state.next_task.load(std::memory_order_relaxed);
    while (begin < size) {
      const int64_t end = begin + std::max<int64_t>((size - begin) / (2 * threads), 1);
      if (!state.next_task.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      body(begin, end, thread);
      begin = state.next_task.load(std::memory_order_relaxed);
    }
  });
}

void keep_to_cores(const std::vector<int>& cores) {
  if (cores.empty()) return;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int core : cores) CPU_SET(core, &mask);
  sched_setaffinity(0, sizeof(mask), &mask);
}

int32_t this_thread_number() {
  return static_cast<int32_t>(gettid());
}

void give_way_to_other_threads(GivesWay how, int32_t thread) {
  constexpr int kMost = 19;
  const int more = how == GivesWay::kSomewhat ? 5 : how == GivesWay::kMuch ? 10 : kMost;
  const int usual = getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()));  // the main thread's
  const int wanted = std::min(usual + more, kMost);
  const auto id = static_cast<id_t>(thread);
  if (getpriority(PRIO_PROCESS, id) < wanted) setpriority(PRIO_PROCESS, id, wanted);
}

}  // namespace quire
