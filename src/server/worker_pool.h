// A few threads for what takes too long on an I/O thread: parsing big bodies, templates, tokenizing. Each tenant has
// its share of their time, and long work has threads of its own that give way to all others, so that what one client
// sends delays nobody else for long: not those whose requests are prepared, nor those whose tokens are computed. Work
// that was taken for short and is not gives way too, and while it runs another thread is in its place.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>
#include <vector>

namespace quire::server {

class WorkerPool {
 public:
  // Seconds since some time, for measuring.
  using Seconds = std::function<double()>;

  // num_threads: for short work; one fewer, but at least one, are for long work. max_queued: of all tenants together.
  // num_tenants >= 1. Without a clock: the system's.
  WorkerPool(int num_threads, size_t max_queued, size_t num_tenants, Seconds clock = {});
  ~WorkerPool();  // stop()
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Work that is known to take long before it is begun, by its size.
  enum class Length { kShort, kLong };

  // False, and `work` is not taken, when the queue is full or the pool stopped. Any thread. A tenant's work of one
  // length is begun in the order of posting; among tenants the one that had the least time is next. Where there are
  // several tenants, short work of one waits while some of it is stuck: runs for longer than kStuckSeconds.
  // REQUIRES: 0 <= tenant < num_tenants.
  bool post(int32_t tenant, Length length, std::function<void()> work);
  // Finishes what runs, drops what waits, joins. Idempotent.
  void stop();

  static constexpr double kStuckSeconds = 0.1;
  // Threads with stuck work that have another in their place, at most.
  static constexpr int kMostReplaced = 8;

 private:
  using Queue = std::deque<std::function<void()>>;
  struct Job {  // that runs
    double begun;
    Length length;
    int32_t thread;
    bool replaced = false;  // found to be stuck: its thread gives way, is not among the num_threads_, and ends with it
  };
  struct Tenant {
    std::array<Queue, 2> waiting;  // by Length
    double used = 0;               // seconds of its work that is done
    std::list<Job> running;
    bool idle() const { return running.empty() && waiting[0].empty() && waiting[1].empty(); }
  };
  static size_t index(Length length) { return static_cast<size_t>(length); }
  static bool is_stuck(const Job& job, double now) {
    return job.length == Length::kShort && now - job.begun > kStuckSeconds;
  }

  void run(Length length);
  // Whose work a thread that is free does now; nullptr: nobody's.
  Tenant* choose_locked(Length length);
  static double time_of(const Tenant& tenant, double now);
  // Lets stuck work give way, starts threads for short work that are missing and joins those that have ended.
  void watch();
  void replace_stuck_locked();
  void start_thread_locked(Length length);
  void end_thread_locked();

  const int num_threads_;
  const size_t max_queued_;
  const Seconds clock_;
  std::mutex mutex_;
  std::array<std::condition_variable, 2> changed_;  // by Length
  std::vector<Tenant> tenants_;
  double least_used_ = 0;  // of tenants that have work: where one that comes back begins
  size_t num_queued_ = 0;
  int num_short_running_ = 0;
  int num_short_threads_ = 0;  // that begin work: without those that are replaced
  int num_replaced_ = 0;
  bool stopping_ = false;
  std::list<std::thread> threads_, ended_;
  std::condition_variable watched_;
  std::thread watcher_;
};

}  // namespace quire::server
