#include "base/leavable_thread.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/thread_clock.h"
#include "base/thread_pool.h"

namespace quire {
namespace {

std::atomic<int> left_threads = 0;

}  // namespace

struct LeavableThread::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> work;  // guarded by mutex, like all below; empty: there is none, or it is done
  int32_t number = 0;
  bool ends = false;
  bool left = false;

  // The thread's.
  void serve() {
    std::unique_lock lock(mutex);
    number = this_thread_number();
    while (true) {
      changed.wait(lock, [this] { return ends || work; });
      if (!work) return;
      lock.unlock();
      work();
      lock.lock();
      work = nullptr;  // and what it owned
      if (left) --left_threads;
      changed.notify_all();
      if (left) return;
    }
  }
};

LeavableThread::~LeavableThread() {
  if (shared_ == nullptr) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->ends = true;
    shared_->changed.notify_all();
  }
  thread_.join();
}

std::optional<double> LeavableThread::run(std::function<void()> work, double most_seconds) {
  constexpr std::chrono::milliseconds kLook{20};
  if (shared_ == nullptr) {
    shared_ = std::make_shared<Shared>();
    thread_ = std::thread([shared = shared_] { shared->serve(); });
  }
  clockid_t clock{};
  pthread_getcpuclockid(thread_.native_handle(), &clock);
  const double begin = seconds_of(clock);
  std::unique_lock lock(shared_->mutex);
  shared_->work = std::move(work);
  shared_->changed.notify_all();
  while (!shared_->changed.wait_for(lock, kLook, [this] { return !shared_->work; })) {
    if (seconds_of(clock) - begin <= most_seconds) continue;
    shared_->left = true;
    ++left_threads;
    give_way_to_other_threads(GivesWay::kAll, shared_->number);
    lock.unlock();
    thread_.detach();
    shared_.reset();
    return std::nullopt;
  }
  return seconds_of(clock) - begin;
}

int LeavableThread::num_left() {
  return left_threads;
}

}  // namespace quire
