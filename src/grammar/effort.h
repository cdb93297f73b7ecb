// The processor time that following one answer's form may take: it is spent beside every other answer's, so a form that
// is read in too many ways at once ends its own answer instead.
#pragma once

#include <ctime>

namespace quire::grammar {

class Effort {
 public:
  // Counts this thread's time for as long as it lives.
  class Span {
   public:
    explicit Span(Effort& effort) : effort_(effort), begin_(now()) {}
    ~Span() { effort_.seconds_ += now() - begin_; }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Effort& effort_;
    double begin_;
  };

  void add_token() { ++tokens_; }
  // Usual forms take 10 to 300 us a token, the slowest of large vocabularies 1 ms.
  bool spent() const { return seconds_ > kAtOnce + kPerToken * tokens_; }

 private:
  static constexpr double kAtOnce = 0.2;
  static constexpr double kPerToken = 0.004;

  static double now() {
    std::timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  double seconds_ = 0;
  double tokens_ = 0;
};

}  // namespace quire::grammar
