#include "server/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace quire::server {

namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

WorkerPool::WorkerPool(int num_threads, size_t max_queued, size_t num_tenants, Seconds clock)
    : num_threads_(num_threads),
      max_queued_(max_queued),
      clock_(clock ? std::move(clock) : steady_seconds),
      tenants_(num_tenants) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkerPool::~WorkerPool() {
  stop();
}

bool WorkerPool::post(int32_t tenant, Length length, std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || num_queued_ >= max_queued_) return false;
    Tenant& one = tenants_[static_cast<size_t>(tenant)];
    // Time in which it asked for nothing is not saved up.
    if (one.idle()) one.used = std::max(one.used, least_used_);
    one.waiting[static_cast<size_t>(length)].push_back(std::move(work));
    ++num_queued_;
  }
  changed_.notify_one();
  return true;
}

void WorkerPool::stop() {
  std::vector<Queue> dropped;  // destroyed outside the lock
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Tenant& tenant : tenants_) {
      for (Queue& queue : tenant.waiting) dropped.push_back(std::exchange(queue, {}));
    }
    num_queued_ = 0;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

double WorkerPool::time_of(const Tenant& tenant, double now) {
  double seconds = tenant.used;
  for (const double begun : tenant.begun) seconds += now - begun;
  return seconds;
}

std::optional<WorkerPool::Choice> WorkerPool::choose_locked() {
  if (num_queued_ == 0) return std::nullopt;
  const double now = clock_();
  const bool last_thread = num_threads_ > 1 && num_running_ + 1 == num_threads_;
  std::optional<Choice> best;
  double least = 0;
  for (Tenant& tenant : tenants_) {
    auto& [short_work, long_work] = tenant.waiting;
    Queue* queue = !short_work.empty() ? &short_work : last_thread ? nullptr : &long_work;
    if (queue == nullptr || queue->empty()) continue;
    const auto is_stuck = [&](double begun) { return now - begun > kStuckSeconds; };
    if (last_thread && tenants_.size() > 1 && std::ranges::any_of(tenant.begun, is_stuck)) continue;
    const double time = time_of(tenant, now);
    if (best && time >= least) continue;
    best = Choice{&tenant, queue};
    least = time;
  }
  if (best) least_used_ = std::max(least_used_, best->tenant->used);
  return best;
}

void WorkerPool::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    std::optional<Choice> choice;
    changed_.wait(lock, [&] { return stopping_ || (choice = choose_locked()).has_value(); });
    if (stopping_) return;
    Tenant& tenant = *choice->tenant;
    std::function<void()> work = std::move(choice->queue->front());
    choice->queue->pop_front();
    --num_queued_;
    ++num_running_;
    const double begun = clock_();
    tenant.begun.push_back(begun);
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    --num_running_;
    tenant.begun.erase(std::ranges::find(tenant.begun, begun));
    tenant.used += clock_() - begun;
    // What this thread left aside may be another's now.
    if (num_queued_ > 0) changed_.notify_all();
  }
}

}  // namespace quire::server
