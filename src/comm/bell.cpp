#include "comm/bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#include <limits>

namespace quire::comm {
namespace {

void relax_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Between processes, so without FUTEX_PRIVATE_FLAG.
void sleep_while(std::atomic<uint32_t>& number, uint32_t value, std::chrono::milliseconds most) {
  timespec timeout{};
  timeout.tv_sec = most.count() / 1000;
  timeout.tv_nsec = most.count() % 1000 * 1'000'000;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&number), FUTEX_WAIT, value, &timeout, nullptr, 0);
}

}  // namespace

void Bell::set(uint32_t value) {
  number.store(value);
  if (sleepers.load() == 0) return;
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&number), FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr,
          nullptr, 0);
}

bool wait_for(Bell& bell, const Patience& patience, FunctionRef<bool()> ready, FunctionRef<bool()> may_wait) {
  constexpr int kPausesBetweenClockReads = 64;
  if (ready()) return true;
  if (patience.spin.count() > 0) {
    const auto end = std::chrono::steady_clock::now() + patience.spin;
    do {
      for (int i = 0; i < kPausesBetweenClockReads; ++i) {
        if (ready()) return true;
        relax_processor();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  bell.sleepers.fetch_add(1);
  bool done = false;
  while (true) {
    const uint32_t seen = bell.number.load();
    done = ready();
    if (done || !may_wait()) break;
    sleep_while(bell.number, seen, patience.nap);
  }
  bell.sleepers.fetch_sub(1);
  return done;
}

}  // namespace quire::comm
