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
  std::lock_guard lock(mutex_);
  for (int i = 0; i < std::max(num_threads - 1, 1); ++i) start_thread_locked(Length::kLong);
  watcher_ = std::thread([this] { watch(); });  // starts those for short work
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
  std::list<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
    threads.splice(threads.end(), ended_);
    for (Tenant& tenant : tenants_) {
      for (Queue& queue : tenant.waiting) dropped.push_back(std::exchange(queue, {}));
    }
    num_queued_ = 0;
  }
  for (std::condition_variable& changed : changed_) changed.notify_all();
  watched_.notify_all();
  for (std::thread& thread : threads) thread.join();
  if (watcher_.joinable()) watcher_.join();
}

double WorkerPool::time_of(const Tenant& tenant, double now) {
  double seconds = tenant.used;
  for (const Job& job : tenant.running) seconds += now - job.begun;
  return seconds;
}

WorkerPool::Tenant* WorkerPool::choose_locked(Length length) {
  if (num_queued_ == 0) return nullptr;
  const double now = clock_();
  const bool others = length == Length::kShort && tenants_.size() > 1;
  Tenant* best = nullptr;
  double least = 0;
  for (Tenant& tenant : tenants_) {
    if (tenant.waiting[index(length)].empty()) continue;
    if (others && std::ranges::any_of(tenant.running, [&](const Job& job) { return is_stuck(job, now); })) continue;
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
    if (length == Length::kShort && num_short_running_++ == 0) watched_.notify_one();
    const auto job = tenant->running.insert(tenant->running.end(), {clock_(), length, this_thread_number()});
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
    if (length == Length::kShort) --num_short_running_;
    tenant->used += clock_() - job->begun;
    const bool replaced = job->replaced;
    tenant->running.erase(job);
    // What was left aside while this one ran may be another thread's now.
    if (num_queued_ > 0) changed_[index(Length::kShort)].notify_all();
    if (replaced) return end_thread_locked();  // it cannot take back that it gave way
  }
}

void WorkerPool::start_thread_locked(Length length) {
  if (length == Length::kShort) ++num_short_threads_;
  threads_.emplace_back([this, length] { run(length); });
}

void WorkerPool::end_thread_locked() {
  --num_replaced_;
  const auto own = std::ranges::find(threads_, std::this_thread::get_id(), &std::thread::get_id);
  if (own == threads_.end()) return;  // the pool stops, and joins it
  ended_.splice(ended_.end(), threads_, own);
  watched_.notify_one();
}

void WorkerPool::replace_stuck_locked() {
  const double now = clock_();
  for (Tenant& tenant : tenants_) {
    for (Job& job : tenant.running) {
      if (job.replaced || num_replaced_ == kMostReplaced || !is_stuck(job, now)) continue;
      job.replaced = true;
      give_way_to_other_threads(GivesWay::kMuch, job.thread);
      ++num_replaced_;
      --num_short_threads_;
    }
  }
  // A thread gives way from its beginning as the one does that starts it, so only the watcher starts these.
  while (num_short_threads_ < num_threads_) start_thread_locked(Length::kShort);
}

void WorkerPool::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (!ended_.empty()) {
      std::list<std::thread> ended = std::move(ended_);
      ended_.clear();
      lock.unlock();
      for (std::thread& thread : ended) thread.join();
      lock.lock();
      continue;
    }
    replace_stuck_locked();
    if (num_short_running_ == 0) {
      watched_.wait(lock, [this] { return stopping_ || num_short_running_ > 0 || !ended_.empty(); });
    } else {
      watched_.wait_for(lock, std::chrono::duration<double>(kStuckSeconds),
                        [this] { return stopping_ || !ended_.empty(); });
    }
  }
}

}  // namespace quire::server
