// Memory that sampling reuses from row to row.
#pragma once

#include <vector>

#include "types/ids.h"

namespace quire::sampling {

// A token that may be chosen, with its logit or its weight.
struct Candidate {
  float value;
  TokenId id;
};

// One a thread; holds nothing between calls that matters.
struct SamplingScratch {
  std::vector<Candidate> candidates;
  std::vector<double> block_sums;
  std::vector<double> bucket_masses;
  std::vector<float> raw_logits;
};

}  // namespace quire::sampling
