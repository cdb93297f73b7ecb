// A few threads for what takes too long on an I/O thread: parsing big bodies, templates, tokenizing. Each tenant has
// its share of their time, and long work has threads of its own that give way to all others, so that what one client
// sends delays nobody else for long: not those whose requests are prepared, nor those whose tokens are computed.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
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
  // length is done in the order of posting; among tenants the one that had the least time is next. The last free thread
  // for short work, where there are several, takes none of a tenant (of several) that keeps another thread for longer
  // than kStuckSeconds already.
  // REQUIRES: 0 <= tenant < num_tenants.
  bool post(int32_t tenant, Length length, std::function<void()> work);
  // Finishes what runs, drops what waits, joins. Idempotent.
  void stop();

  static constexpr double kStuckSeconds = 0.1;

 private:
  using Queue = std::deque<std::function<void()>>;
  struct Tenant {
    std::array<Queue, 2> waiting;  // by Length
    double used = 0;               // seconds of its work that is done
    std::vector<double> begun;     // when, of its work that runs
    bool idle() const { return begun.empty() && waiting[0].empty() && waiting[1].empty(); }
  };
  static size_t index(Length length) { return static_cast<size_t>(length); }

  void run(Length length);
  // Whose work a thread that is free does now; nullptr: nobody's.
  Tenant* choose_locked(Length length);
  static double time_of(const Tenant& tenant, double now);

  const int num_threads_;
  const size_t max_queued_;
  const Seconds clock_;
  std::mutex mutex_;
  std::array<std::condition_variable, 2> changed_;  // by Length
  std::vector<Tenant> tenants_;
  double least_used_ = 0;  // of tenants that have work: where one that comes back begins
  size_t num_queued_ = 0;
  int num_short_running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::server
