// Whether a guessed token is taken as the next of an answer, and what is drawn where it is not (docs/speculation.md).
#pragma once

#include <span>
#include <vector>

#include "sampling/scratch.h"
#include "types/draft_probability.h"
#include "types/ids.h"
#include "types/speculative_config.h"

namespace quire::sampling {

struct Guess {
  TokenId token = kNoToken;
  // What it was drawn from: tokens, each once, whose probabilities add up to 1. Empty: it is certain.
  std::span<const DraftProbability> drawn_from;
  AcceptanceRule rule;
};

// What a token is drawn from: weights of a row, whose sums of blocks are the scratch's, or the scratch's candidates.
struct Weights {
  std::span<float> row;  // empty: it is scratch.candidates
  double total = 0;      // of all weights, above 0
};

// 0: it is not among them.
double probability_of(TokenId token, const Weights& weights, const SamplingScratch& scratch);

// Of the distribution, in nats.
double entropy_of(const Weights& weights, const SamplingScratch& scratch);

// Typical acceptance (Cai et al., "Medusa: simple LLM inference acceleration framework with multiple decoding heads",
// 2024): whether a token of this probability is taken.
bool is_typical(double probability, double entropy, const AcceptanceRule& rule);

// Takes from each weight as much as the guess was drawn from; what is left, and its total, is what a token is drawn
// from where the guess is refused. Where rounding leaves nothing, all stays as it is.
void keep_residual(std::span<const DraftProbability> drawn_from, Weights& weights, SamplingScratch& scratch);

// One token by the weights: the guess, if the rule takes it, else one drawn. Of rule kRejection (Leviathan, Kalman,
// Matias: "Fast inference from transformers via speculative decoding", ICML 2023) a guess that was drawn from q is
// taken where accept * q(guess) < p(guess), else max(0, p - q) is drawn from; a certain guess needs no number of its
// own: to draw from p and to compare comes to the same. u, accept: in [0, 1), independent of each other, and of the
// number that the guess was drawn with. guess: nullptr where there is none. weights: overwritten.
TokenId choose_by_weights(Weights weights, double u, double accept, const Guess* guess, SamplingScratch& scratch);

}  // namespace quire::sampling
