// Heads that draft with one layer of a decoder, which reads the larger model's states behind its last norm beside the
// token that followed, and goes on from its own states (Li et al., "EAGLE: speculative sampling requires rethinking
// feature uncertainty", 2024; DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 2.2). Embeddings and the head
// over the vocabulary are the larger model's.
#pragma once

#include <string>

#include "models/decoder.h"
#include "models/draft_head.h"

namespace quire::models {

struct LayerHeadShape {
  DecoderShape decoder;  // of the layer
  std::string layer;     // what its parameters stand behind, with a dot at the end
  std::string join;      // of [embedding of the token | state], 2 * hidden_size to hidden_size; a bias if there is one
  // Norms of the two halves before that, and of what the head over the vocabulary reads; empty: there is none.
  std::string token_norm;
  std::string state_norm;
  std::string norm;
  bool goes_on_normed = false;  // what goes on as a state is behind the last of these, not before it
};

// config: of the layer, of which there is one. Declares the parameters; finishing the loader is the caller's.
std::unique_ptr<Model> build_layer_head(const LayerHeadShape& shape, const ModelConfig& config, int64_t num_positions,
                                        nn::Loader& loader);

}  // namespace quire::models
