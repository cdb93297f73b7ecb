#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "sampling/row_math.h"

namespace quire::sampling {

Result<PositionLogprobs> position_logprobs(std::span<const float> logits, TokenId token, int32_t top) {
  QUIRE_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  QUIRE_CHECK(top >= -1);
  const RowMaximum maximum = row_maximum(logits);
  if (!maximum.finite) return not_finite();
  const double log_sum = std::log(sum_exp(logits, maximum.value));
  const auto logprob = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - static_cast<double>(maximum.value) - log_sum);
  };

  PositionLogprobs logprobs;
  const float chosen = logits[static_cast<size_t>(token)];
  logprobs.chosen = {token, logprob(chosen), 1 + static_cast<int32_t>(count_greater(logits, chosen))};
  if (top == 0) return logprobs;
  std::vector<Candidate> largest;
  const size_t count = top == -1 ? logits.size() : std::min(static_cast<size_t>(top), logits.size());
  select_largest(logits, count, largest);
  logprobs.top.reserve(largest.size());
  for (size_t i = 0; i < largest.size(); ++i) {
    const bool tied = i > 0 && largest[i].value == largest[i - 1].value;
    const int32_t rank = tied ? logprobs.top.back().rank : static_cast<int32_t>(i) + 1;
    logprobs.top.push_back({largest[i].id, logprob(largest[i].value), rank});
  }
  return logprobs;
}

}  // namespace quire::sampling
