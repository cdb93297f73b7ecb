#include "base/leavable_thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <mutex>
#include <utility>

namespace quire {
namespace {

std::atomic<int> left_threads = 0;

double seconds_of(clockid_t clock) {
  std::timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

}  // namespace

struct LeavableThread::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> work;  // guarded by mutex, like all below; empty: there is none, or it is done
  pid_t id = 0;
  bool ends = false;
  bool left = false;

  // The thread's.
  void serve() {
    std::unique_lock lock(mutex);
    id = gettid();
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
    setpriority(PRIO_PROCESS, static_cast<id_t>(shared_->id), 19);  // Linux: of the thread
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
