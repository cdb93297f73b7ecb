// Logits of a model that was computed in two ways, of the prompts of its recorded answers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/runner/tiny_model.h"

namespace quire::runner {

// of each case: [rows, vocab_size]. Log-probabilities of the prompt's tokens are the same within the tolerance.
inline void expect_near_logprobs(const std::string& name, const std::vector<std::vector<std::vector<float>>>& found,
                                 const std::vector<std::vector<std::vector<float>>>& expected, double tolerance) {
  const std::vector<GoldenCase> cases = read_golden(name);
  ASSERT_EQ(found.size(), expected.size());
  double largest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].size(), expected[i].size());
    for (size_t row = 0; row < found[i].size(); ++row) {
      for (const TokenId token : cases[i].prompt) {
        const double difference = std::fabs(log_softmax(found[i][row], token) - log_softmax(expected[i][row], token));
        ASSERT_FALSE(std::isnan(difference)) << "row " << row;
        largest = std::max(largest, difference);
      }
    }
  }
  EXPECT_LE(largest, tolerance);
  testing::Test::RecordProperty("largest_logprob_difference", std::to_string(largest));
}

}  // namespace quire::runner
