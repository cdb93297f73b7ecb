// Processor time of one thread: what it did, whatever else the machine does.
#pragma once

#include <ctime>

namespace quire {

// Of the calling thread since it began.
inline double thread_seconds() {
  std::timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Adds the calling thread's time, for as long as this lives, to a sum.
class ThreadTimeSpan {
 public:
  explicit ThreadTimeSpan(double& seconds) : seconds_(seconds), begin_(thread_seconds()) {}
  ~ThreadTimeSpan() { seconds_ += thread_seconds() - begin_; }
  ThreadTimeSpan(const ThreadTimeSpan&) = delete;
  ThreadTimeSpan& operator=(const ThreadTimeSpan&) = delete;

 private:
  double& seconds_;
  double begin_;
};

}  // namespace quire
