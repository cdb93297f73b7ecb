// A number in shared memory that is waited for: whoever waits spins first and then sleeps in the kernel until the
// number changes. Works between threads and between processes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/function_ref.h"

namespace quire::comm {

// Lies in zeroed shared memory: all zeros is a bell that has not rung. A sleeper raises its flag and then looks again;
// who rings changes the number and then looks at the flag; all of it is sequentially consistent, so one sees the other.
struct alignas(64) Bell {
  std::atomic<uint32_t> number{0};
  std::atomic<uint32_t> sleepers{0};

  uint32_t get() const { return number.load(std::memory_order_acquire); }
  void set(uint32_t value);
  void ring() { set(number.load(std::memory_order_relaxed) + 1); }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

struct Patience {
  std::chrono::microseconds spin{0};  // before it sleeps
  std::chrono::milliseconds nap{20};  // after so long asleep `may_wait` is asked
};

// Waits until ready(), which depends on the bell's number alone. may_wait: asked now and then; false ends the waiting.
// Returns ready().
bool wait_for(Bell& bell, const Patience& patience, FunctionRef<bool()> ready, FunctionRef<bool()> may_wait);

}  // namespace quire::comm
