// What the families with experts share: the numbers of their configurations and the choice of a layer's block.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "models/config_reader.h"
#include "models/model.h"
#include "nn/moe.h"

namespace quire::models {

inline constexpr int64_t kMostExperts = 65536;

struct MoeDefaults {
  int64_t num_experts = 8;
  int64_t experts_per_token = 2;  // 0: the key must be there
  // The key and the default of one expert's intermediate size.
  std::string_view size_key = "intermediate_size";
  int64_t size = 0;  // 0: the key must be there
};

// num_experts (under any of its names), experts_per_token and intermediate_size; every layer sparse. Errors:
// invalid_argument naming the field.
Result<MoeConfig> read_moe(const boost::json::object& config, const ModelConfig& model, const MoeDefaults& defaults);

// "decoder_sparse_step" and "mlp_only_layers".
Status read_qwen_sparse_layers(const boost::json::object& config, ModelConfig& out);

// That the groups and the experts chosen fit. Errors: invalid_argument.
Status check_groups(const MoeConfig& moe);

// MoeBlock or, on a layer that is not sparse, GatedMlp: what a DecoderShape asks for.
std::unique_ptr<nn::FeedForward> sparse_or_dense(nn::Loader& loader, const std::string& prefix,
                                                 const ModelConfig& config, int32_t layer);

}  // namespace quire::models
