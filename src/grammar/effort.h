// The processor time that following one answer's output may take: it is spent beside every other answer's, so a output
// that is read in too many ways at once ends its own answer instead.
#pragma once

#include "base/thread_clock.h"

namespace quire::grammar {

class Effort {
 public:
  // Counts this thread's time for as long as what is returned lives.
  [[nodiscard]] ThreadTimeSpan span() { return ThreadTimeSpan(seconds_); }

  void add_token() { ++tokens_; }
  void add_seconds(double seconds) { seconds_ += seconds; }
  // That may still be spent.
  double left() const { return kAtOnce + kPerToken * tokens_ - seconds_; }
  // Usual constraints take 10 to 300 us a token, the slowest of large vocabularies 1 ms.
  bool spent() const { return left() < 0; }

  static constexpr double kAtOnce = 0.2;

 private:
  static constexpr double kPerToken = 0.004;

  double seconds_ = 0;
  double tokens_ = 0;
};

}  // namespace quire::grammar
