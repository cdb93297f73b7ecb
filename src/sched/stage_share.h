// What one step of a pipeline may have, so that its stages find work one behind the other: rule 10 of scheduler.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace quire::sched {

class StageShare {
 public:
  // One stage: there is no bound.
  StageShare() = default;

  // num_answered: sequences of which one token is to be computed, or under way. prompt_tokens: those still to come of
  // prompts that run or wait. Prompts are cut to parts of at least least_tokens; 0: not at all.
  //
  // The first part passes through all stages before the last one has anything to do, and the last part leaves the first
  // without: so parts are small beside the whole, but not so small that a step costs more than what is in it.
  StageShare(int32_t num_stages, int64_t num_answered, int64_t prompt_tokens, int32_t least_tokens) {
    rows_ = (num_answered + num_stages - 1) / num_stages;
    if (least_tokens == 0) return;
    const int64_t parts = most_parts(num_stages);
    tokens_ = std::max<int64_t>((prompt_tokens + parts - 1) / parts, least_tokens);
  }

  static int64_t most_parts(int32_t num_stages) { return int64_t{4} * num_stages; }

  // Tokens left for a sequence that is being answered, or for prompts.
  int32_t left(bool answered) const {
    const int64_t tokens = answered ? rows_ : tokens_;
    return static_cast<int32_t>(std::clamp<int64_t>(tokens, 0, std::numeric_limits<int32_t>::max()));
  }
  void take(bool answered, int32_t num_tokens) { (answered ? rows_ : tokens_) -= num_tokens; }

 private:
  int64_t rows_ = std::numeric_limits<int64_t>::max();
  int64_t tokens_ = std::numeric_limits<int64_t>::max();
};

}  // namespace quire::sched
