// Mirostat (Basu et al., "Mirostat: a neural text decoding algorithm that directly controls
// perplexity", ICLR 2021): the cut adapts from token to token so that the mean surprise of what is
// drawn stays at tau bits.
#pragma once

#include <cstddef>
#include <span>

#include "sampling/scratch.h"
#include "types/ids.h"

namespace quire::sampling {

struct MirostatSettings {
  int version = 2;  // 1 or 2
  float inverse_temperature = 1.0f;
  float tau = 5.0f;
  float eta = 0.1f;
};

struct MirostatDraw {
  TokenId id;
  double mu;  // for the next token
};

// Draws with u of [0, 1) at the bound `mu`, in bits; an answer begins at twice tau. Version 1
// estimates from the 100 most likely tokens the exponent of a Zipf distribution, and from it how many
// tokens to keep (held to [1, vocabulary]); version 2 keeps the tokens whose surprise is at most mu,
// at least one. logits: [vocab_size], overwritten, with the maximum `maximum`.
MirostatDraw draw_with_mirostat(std::span<float> logits, float maximum, const MirostatSettings& settings, double mu,
                                double u, SamplingScratch& scratch);

}  // namespace quire::sampling
