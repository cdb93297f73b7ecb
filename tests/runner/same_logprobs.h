// Log-probabilities that were computed in two ways.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "types/step_plan.h"

namespace quire::runner {

// Tokens and ranks are the same, but where two neighbours are as good as equal.
inline void expect_same_logprobs(const std::vector<PositionLogprobs>& all,
                                 const std::vector<PositionLogprobs>& expected) {
  constexpr double kNear = 1e-4;
  ASSERT_EQ(all.size(), expected.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<TokenLogprob>& top = expected[i].top;
    const auto near = [&](size_t a, size_t b) {
      return b < top.size() && std::abs(top[a].logprob - top[b].logprob) < kNear;
    };
    EXPECT_EQ(all[i].chosen.id, expected[i].chosen.id);
    EXPECT_NEAR(all[i].chosen.logprob, expected[i].chosen.logprob, kNear);
    bool clear = true;  // where the chosen one stands
    ASSERT_EQ(all[i].top.size(), top.size());
    for (size_t n = 0; n < top.size(); ++n) {
      EXPECT_NEAR(all[i].top[n].logprob, top[n].logprob, kNear);
      if (near(n, n + 1) || (n > 0 && near(n - 1, n))) {
        clear = clear && top[n].id != expected[i].chosen.id;
        continue;
      }
      EXPECT_EQ(all[i].top[n].id, top[n].id);
      EXPECT_EQ(all[i].top[n].rank, top[n].rank);
    }
    if (clear) {
      EXPECT_EQ(all[i].chosen.rank, expected[i].chosen.rank);
    }
  }
}

}  // namespace quire::runner
