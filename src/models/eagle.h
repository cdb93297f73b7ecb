// EAGLE (Li et al., "EAGLE: speculative sampling requires rethinking feature uncertainty", 2024): a layer of Llama
// without its first norm over a larger model's states and the tokens that followed them. Tensors are named as in
// published heads ("fc", "layers.0", no norm and no head of its own). With norms over both halves
// ("embedding_layernorm", "hidden_states_layernorm") it is that of HASS (Zhang et al., 2024). EAGLE-2 differs in how
// guesses are tried alone.
#pragma once

#include "models/model.h"

namespace quire::models {

// Errors: those of a decoder's configuration; unimplemented for more layers than one.
Result<ModelConfig> read_eagle_config(const boost::json::object& config, const boost::json::object& generation);
// A model that is a DraftHead.
Result<std::unique_ptr<Model>> build_eagle(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kEagleFamily = {read_eagle_config, build_eagle};

}  // namespace quire::models
