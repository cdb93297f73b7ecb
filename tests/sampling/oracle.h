// The sampling methods once more, in double and in the plainest way: whole lists, sorted at every
// step. Slow, and independent of the code under test.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "types/ids.h"
#include "types/sampling_params.h"

namespace quire::sampling::oracle {

struct Token {
  TokenId id;
  double value;  // a logit, later a probability
};
using Tokens = std::vector<Token>;                   // falling values, rising ids among equals
using Breakers = std::vector<std::vector<TokenId>>;  // those of DRY

// The logits after allowed ids, bad words, min_tokens, bias, penalties and (not for beams) DRY.
std::vector<double> processed(const SamplingParams& params, const std::vector<TokenId>& prompt,
                              const std::vector<TokenId>& output, const std::vector<TokenId>& stop_ids,
                              std::vector<double> logits, const Breakers& breakers, bool with_dry = true);

// The penalty of each token that DRY touches, by comparing every place of the history with its end.
std::map<TokenId, double> dry_penalties(const SamplingParams& params, const Breakers& breakers,
                                        const std::vector<TokenId>& history);

Tokens sorted(const std::vector<double>& logits);  // those above -inf
Tokens softmax(Tokens logits);
Tokens normalised(Tokens probabilities);
double entropy(const Tokens& probabilities);
Tokens top_n_sigma(Tokens logits, double n);
double dynamic_temperature(const Tokens& logits, double temperature, double range, double exponent);
Tokens min_p(Tokens probabilities, double share);
Tokens top_k(Tokens probabilities, size_t k);
Tokens typical(Tokens probabilities, double p);
Tokens top_p(Tokens probabilities, double p);
Tokens exclude_top_choices(Tokens probabilities, double threshold);

// All filters in the sampler's order, for one draw; xtc: whether it strikes.
Tokens distribution(const SamplingParams& params, const std::vector<double>& logits, bool xtc);

// What Mirostat keeps, and the bound after `drawn`.
Tokens mirostat(const SamplingParams& params, const std::vector<double>& logits, double mu);
double mirostat_next_mu(const SamplingParams& params, const Tokens& kept, TokenId drawn, double mu);

// The first token at which the running sum exceeds u; nullopt where rounding could decide otherwise.
std::optional<TokenId> draw(Tokens probabilities, bool by_id, double u);

std::vector<float> random_logits(std::mt19937& random, size_t vocab_size, float spread);
std::vector<double> widened(const std::vector<float>& logits);

}  // namespace quire::sampling::oracle
