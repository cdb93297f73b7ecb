// EAGLE-3 (Li et al., "EAGLE-3: scaling up inference acceleration of large language models via training-time test",
// 2025): one layer that guesses what a larger model says next, out of that one's states and the tokens that followed
// them. Tensors are named as in published heads ("fc", "midlayer", "norm", "lm_head", "d2t").
#pragma once

#include <vector>

#include "models/draft_head.h"

namespace quire::models {

// The layers before which the larger model's states are taken (from 0 on; num_layers: behind the last): those that the
// head's configuration names, else the usual three. Errors: invalid_argument naming the member.
Result<std::vector<int32_t>> eagle3_layers(const ModelConfig& head, int32_t num_layers);

Result<ModelConfig> read_eagle3_config(const boost::json::object& config, const boost::json::object& generation);
// A model that is a DraftHead.
Result<std::unique_ptr<Model>> build_eagle3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kEagle3Family = {read_eagle3_config, build_eagle3};

}  // namespace quire::models
