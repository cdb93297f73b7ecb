// When a request came to the engine, and when what followed: for who tells of a request's life elsewhere (a trace's
// span). Shared by its consumer and the engine, whose thread notes the times as they come; of several sequences (n, or
// prompts of one request, in whatever engines) the first that begins counts, and the last that ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace quire {

// All by std::chrono::steady_clock. Any thread.
class RequestTimeline {
 public:
  using Clock = std::chrono::steady_clock;

  void arrived(Clock::time_point now) { first_of(arrival_, now); }
  void scheduled(Clock::time_point now) { first_of(scheduled_, now); }
  void token(Clock::time_point now) {
    first_of(first_token_, now);
    last_of(last_token_, now);
  }
  // With an answer, however it ended.
  void finished(Clock::time_point now) { last_of(end_, now); }

  // Seconds between two of them; below 0: one of the two has not come.
  double in_queue() const { return between(arrival_, scheduled_); }
  double to_first_token() const { return between(arrival_, first_token_); }
  double in_prefill() const { return between(scheduled_, first_token_); }
  double in_decode() const { return between(first_token_, last_token_); }
  double in_inference() const { return between(scheduled_, end_); }
  double end_to_end() const { return between(arrival_, end_); }

 private:
  using Stamp = std::atomic<int64_t>;  // nanoseconds of the clock; 0: not yet

  static int64_t count(Clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  }
  static void first_of(Stamp& stamp, Clock::time_point now) {
    int64_t none = 0;
    stamp.compare_exchange_strong(none, count(now), std::memory_order_relaxed);
  }
  static void last_of(Stamp& stamp, Clock::time_point now) {
    const int64_t time = count(now);
    int64_t seen = stamp.load(std::memory_order_relaxed);
    while (seen < time && !stamp.compare_exchange_weak(seen, time, std::memory_order_relaxed)) {
    }
  }
  static double between(const Stamp& from, const Stamp& to) {
    const int64_t begin = from.load(std::memory_order_relaxed);
    const int64_t end = to.load(std::memory_order_relaxed);
    return begin == 0 || end == 0 ? -1 : static_cast<double>(end - begin) * 1e-9;
  }

  Stamp arrival_{0};
  Stamp scheduled_{0};
  Stamp first_token_{0};
  Stamp last_token_{0};
  Stamp end_{0};
};

}  // namespace quire
