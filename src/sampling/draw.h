// One token out of weights that need not add up to 1, by inverting the cumulative distribution.
#pragma once

#include <span>
#include <vector>

#include "sampling/scratch.h"
#include "types/ids.h"

namespace quire::sampling {

// The place of the first candidate at which the running sum of weights exceeds u * total. REQUIRES: candidates not
// empty; u in [0, 1).
size_t draw(const std::vector<Candidate>& candidates, double total, double u);

// The same over a whole row of weights; block_sums (of replace_by_weights) spare most of the walk.
TokenId draw(std::span<const float> weights, const std::vector<double>& block_sums, double total, double u);

}  // namespace quire::sampling
