// A vector of the hidden states of a sequence's prompt, which may come in several runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "types/pooling.h"

namespace quire::runner {

class HiddenPool {
 public:
  // The positions of a prompt of `length` tokens that count.
  struct Span {
    int64_t from = 0;
    int64_t length = 0;
  };
  // Takes the states [count, size] of the positions from `first` on of a prompt. Positions that were
  // taken before (of a sequence that is computed again) are passed over; each is added in its turn, so that no bit
  // depends on the runs. REQUIRES: the same types each time; first <= the next position that is wanted, unless only the
  // last one is.
  void take(std::span<const PoolingType> types, const float* states, int64_t first, int64_t count, const Span& prompt,
            int64_t size);
  bool is_complete(int64_t length) const { return next_ == length; }
  // The vectors of all types, one behind the other. Errors: internal where one is not finite. REQUIRES: is_complete().
  Result<std::vector<float>> vector() const;

 private:
  struct Part {
    PoolingType type = PoolingType::kLast;
    std::vector<double> numbers;  // of the positions that count: their sum, or the largest
    double weight = 0;            // how often they have been counted

    void add(const float* row, int64_t position, const Span& prompt);
    double divisor() const;
  };

  std::vector<Part> parts_;
  int64_t next_ = 0;  // position
};

}  // namespace quire::runner
