#include "server/worker_pool.h"

#include <utility>

namespace quire::server {

WorkerPool::WorkerPool(int num_threads, size_t max_queued, size_t num_tenants)
    : max_queued_(max_queued), queues_(num_tenants) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkerPool::~WorkerPool() {
  stop();
}

bool WorkerPool::post(int32_t tenant, std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || num_queued_ >= max_queued_) return false;
    queues_[static_cast<size_t>(tenant)].push_back(std::move(work));
    ++num_queued_;
  }
  changed_.notify_one();
  return true;
}

void WorkerPool::stop() {
  std::vector<std::deque<std::function<void()>>> dropped;  // destroyed outside the lock
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(queues_);
    num_queued_ = 0;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void WorkerPool::run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stopping_ || num_queued_ > 0; });
      if (stopping_) return;
      while (queues_[turn_].empty()) turn_ = (turn_ + 1) % queues_.size();
      work = std::move(queues_[turn_].front());
      queues_[turn_].pop_front();
      --num_queued_;
      turn_ = (turn_ + 1) % queues_.size();
    }
    work();
  }
}

}  // namespace quire::server
