// How long a piece of work takes when nothing disturbs it.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>

namespace quire::bench {

// The compiler must take what `memory` points to as read and written here.
inline void keep(const void* memory) {
  asm volatile("" : : "g"(memory) : "memory");
}

// The least of the times that work() takes over `seconds` of repetitions, three at least: whatever else runs on the
// machine can only add to it.
template <typename Work>
double least_seconds(double seconds, const Work& work) {
  using Clock = std::chrono::steady_clock;
  double least = std::numeric_limits<double>::infinity();
  const Clock::time_point begin = Clock::now();
  for (int repetition = 0;; ++repetition) {
    const Clock::time_point start = Clock::now();
    work();
    const Clock::time_point end = Clock::now();
    least = std::min(least, std::chrono::duration<double>(end - start).count());
    constexpr int kFewest = 3;
    if (repetition + 1 >= kFewest && std::chrono::duration<double>(end - begin).count() >= seconds) return least;
  }
}

}  // namespace quire::bench
