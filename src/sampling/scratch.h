// Memory that sampling reuses from row to row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "types/ids.h"

namespace quire::sampling {

// A token that may be chosen, with its logit or its weight.
struct Candidate {
  float value;
  TokenId id;
};

// One a thread; holds nothing between calls that matters but the count of seconds, which its owner may clear.
struct SamplingScratch {
  std::vector<Candidate> candidates;
  std::vector<Candidate> residual;  // of a refused guess
  std::vector<double> block_sums;
  std::vector<double> bucket_masses;
  std::vector<float> raw_logits;
  std::vector<float> allowed_logits;
  std::vector<uint32_t> allowed_mask;
  std::vector<TokenId> banned;
  std::vector<TokenId> history;           // the last tokens of a text
  std::vector<float> constrained_logits;  // of a constrained row, before a token is chosen
  std::vector<float> shifted;             // logarithms of weights
  std::vector<float> deviations;          // of locally typical sampling
  std::vector<size_t> lengths;            // of repeated runs of tokens
  double constraint_seconds = 0;          // of a processor, spent on the constraints of answers (structured output)
};

}  // namespace quire::sampling
