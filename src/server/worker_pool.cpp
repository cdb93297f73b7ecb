#include "server/worker_pool.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/thread_pool.h"

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
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(Length::kShort); });
  for (int i = 0; i < std::max(num_threads - 1, 1); ++i) threads_.emplace_back([this] { run(Length::kLong); });
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
    one.waiting[index(length)].push_back(std::move(work));
    ++num_queued_;
  }
  changed_[index(length)].notify_one();
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
  for (std::condition_variable& changed : changed_) changed.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

double WorkerPool::time_of(const Tenant& tenant, double now) {
  double seconds = tenant.used;
  for (const double begun : tenant.begun) seconds += now - begun;
  return seconds;
}

WorkerPool::Tenant* WorkerPool::choose_locked(Length length) {
  if (num_queued_ == 0) return nullptr;
  const double now = clock_();
  const bool last_thread =
      length == Length::kShort && num_threads_ > 1 && num_short_running_ + 1 == num_threads_ && tenants_.size() > 1;
  Tenant* best = nullptr;
  double least = 0;
  for (Tenant& tenant : tenants_) {
    if (tenant.waiting[index(length)].empty()) continue;
    const auto is_stuck = [&](double begun) { return now - begun > kStuckSeconds; };
    if (last_thread && std::ranges::any_of(tenant.begun, is_stuck)) continue;
    const double time = time_of(tenant, now);
    if (best != nullptr && time >= least) continue;
    best = &tenant;
    least = time;
  }
  if (best != nullptr) least_used_ = std::max(least_used_, best->used);
  return best;
}

void WorkerPool::run(Length length) {
  if (length == Length::kLong) give_way_to_other_threads(GivesWay::kMuch);
  std::unique_lock lock(mutex_);
  for (;;) {
    Tenant* tenant = nullptr;
    changed_[index(length)].wait(lock, [&] { return stopping_ || (tenant = choose_locked(length)) != nullptr; });
    if (stopping_) return;
    Queue& queue = tenant->waiting[index(length)];
    std::function<void()> work = std::move(queue.front());
    queue.pop_front();
    --num_queued_;
    if (length == Length::kShort) ++num_short_running_;
    const double begun = clock_();
    tenant->begun.push_back(begun);
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    if (length == Length::kShort) --num_short_running_;
    tenant->begun.erase(std::ranges::find(tenant->begun, begun));
    tenant->used += clock_() - begun;
    // What was left aside while this one ran may be another thread's now.
    if (num_queued_ > 0) changed_[index(Length::kShort)].notify_all();
  }
}

}  // namespace quire::server
