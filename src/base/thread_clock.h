// Processor time of one thread: what it did, whatever else the machine does.
#pragma once

#include <ctime>

namespace quire {

inline double seconds_of(clockid_t clock) {
  std::timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Of the calling thread since it began.
inline double thread_seconds() {
  return seconds_of(CLOCK_THREAD_CPUTIME_ID);
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
