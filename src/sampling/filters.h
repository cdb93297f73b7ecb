// Filters of a distribution beyond top_k, top_p and min_p. Those over a row touch it in place, in a
// few linear passes; those over candidates expect and leave them in falling order of weight.
#pragma once

#include <span>
#include <vector>

#include "sampling/scratch.h"

namespace quire::sampling {

// Top-n-sigma (Tang et al., "Top-nsigma: not all logits are you need", 2024): logits further than n
// standard deviations (of all logits above -inf) below the maximum become -inf. A temperature before
// or after it makes no difference. REQUIRES: n > 0.
void keep_top_n_sigma(std::span<float> logits, float maximum, float n);

// Dynamic temperature (llama.cpp): temperature - range (at least 0) where the distribution is sure,
// temperature + range where it is uniform: between them goes (entropy / largest possible
// entropy)^exponent. The entropy is that of the softmax at temperature 1.
float dynamic_temperature(std::span<const float> logits, float maximum, float temperature, float range, float exponent);

// Locally typical sampling (Meister et al., "Locally typical sampling", 2022): of the tokens whose
// surprise is nearest to the entropy (more likely ones first among equals), the fewest that weigh
// typical_p of the total together. The rest get weight 0. shifted: the logarithm of each weight, up
// to a common constant. Returns the sum of what is left; over a row it renews scratch.block_sums.
double keep_typical(std::span<float> weights, std::span<const float> shifted, double total, float typical_p,
                    SamplingScratch& scratch);
double keep_typical(std::vector<Candidate>& candidates, std::span<const float> shifted, double total, float typical_p,
                    SamplingScratch& scratch);

// Exclude top choices, "XTC" (Weidmann, text-generation-webui, 2024): of the tokens whose share of
// the total is at least the threshold, all but the least likely one go. Returns the sum of what is
// left; over a row it renews scratch.block_sums.
double exclude_top_choices(std::span<float> weights, double total, float threshold, SamplingScratch& scratch);
double exclude_top_choices(std::vector<Candidate>& candidates, double total, float threshold);

}  // namespace quire::sampling
