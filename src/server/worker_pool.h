// A few threads for what takes too long on an I/O thread: parsing big bodies, templates, tokenizing. Tenants take
// turns, so that what one of them queues delays nobody else.
#pragma once

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
  // max_queued: of all tenants together. num_tenants >= 1.
  WorkerPool(int num_threads, size_t max_queued, size_t num_tenants);
  ~WorkerPool();  // stop()
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False, and `work` is not taken, when the queue is full or the pool stopped. Any thread.
  // REQUIRES: 0 <= tenant < num_tenants.
  bool post(int32_t tenant, std::function<void()> work);
  // Finishes what runs, drops what waits, joins. Idempotent.
  void stop();

 private:
  void run();

  const size_t max_queued_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<std::function<void()>>> queues_;  // by tenant
  size_t num_queued_ = 0;
  size_t turn_ = 0;  // the tenant to be looked at next
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace quire::server
