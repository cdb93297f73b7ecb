#include "sampling/draw.h"

#include <algorithm>

#include "sampling/row_math.h"

namespace quire::sampling {

size_t draw(const std::vector<Candidate>& candidates, double total, double u) {
  const double target = u * total;
  double sum = 0.0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    sum += static_cast<double>(candidates[i].value);
    if (sum > target) return i;
  }
  return candidates.size() - 1;  // rounding: the sum fell short of the total
}

TokenId draw(std::span<const float> weights, const std::vector<double>& block_sums, double total, double u) {
  const double target = u * total;
  double before = 0.0;
  size_t block = 0;
  // Rounding may leave the target beyond the last block with any weight: then it is that one.
  size_t last_with_weight = 0;
  for (; block < block_sums.size(); ++block) {
    if (block_sums[block] > 0.0) last_with_weight = block;
    if (before + block_sums[block] > target) break;
    before += block_sums[block];
  }
  if (block == block_sums.size()) {
    block = last_with_weight;
    before -= block_sums[block];
  }
  const size_t begin = block * kWeightBlock;
  const size_t end = std::min(begin + kWeightBlock, weights.size());
  size_t last_possible = begin;
  double sum = before;
  for (size_t i = begin; i < end; ++i) {
    if (weights[i] == 0.0f) continue;
    last_possible = i;
    sum += static_cast<double>(weights[i]);
    if (sum > target) break;
  }
  return static_cast<TokenId>(last_possible);
}

}  // namespace quire::sampling
