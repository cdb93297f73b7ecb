#include "runner/mask_thread.h"

#include <utility>

#include "base/thread_clock.h"

namespace quire::runner {

MaskThread::MaskThread() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

void MaskThread::start(std::vector<sampling::SequenceSampler*> samplers) {
  const std::lock_guard lock(mutex_);
  samplers_ = std::move(samplers);
  changed_.notify_all();
}

void MaskThread::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return samplers_.empty(); });
}

double MaskThread::take_seconds() {
  const std::lock_guard lock(mutex_);
  return std::exchange(seconds_, 0.0);
}

void MaskThread::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !samplers_.empty(); })) {
    // Only wait() looks at them meanwhile, and whether there are any.
    double seconds = 0;
    lock.unlock();
    {
      const ThreadTimeSpan span(seconds);
      for (sampling::SequenceSampler* sampler : samplers_) sampler->make_mask();
    }
    lock.lock();
    samplers_.clear();
    seconds_ += seconds;
    changed_.notify_all();
  }
}

}  // namespace quire::runner
