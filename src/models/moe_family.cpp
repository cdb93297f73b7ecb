#include "models/moe_family.h"

#include <algorithm>

namespace quire::models {
Result<MoeConfig> read_moe(const boost::json::object& config, const ModelConfig& model, const MoeDefaults& defaults) {
  const ConfigReader reader(config);
  MoeConfig moe;
  int64_t experts = defaults.num_experts;
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    QUIRE_ASSIGN_OR_RETURN(experts, reader.integer_or(key, experts, 1, kMostExperts));
  }
  moe.num_experts = static_cast<int32_t>(experts);
  const bool usable = defaults.experts_per_token > 0 && defaults.experts_per_token <= experts;
  if (!reader.has("num_experts_per_tok") && !usable) {
    return invalid_argument("config: num_experts_per_tok is missing, expected an integer from 1 to {}", experts);
  }
  QUIRE_ASSIGN_OR_RETURN(const int64_t chosen,
                         reader.integer_or("num_experts_per_tok", defaults.experts_per_token, 1, experts));
  moe.experts_per_token = static_cast<int32_t>(chosen);
  if (defaults.size == 0 || reader.has(defaults.size_key)) {
    QUIRE_ASSIGN_OR_RETURN(moe.intermediate_size, reader.integer(defaults.size_key, 1, 1 << 22));
  } else {
    moe.intermediate_size = defaults.size;
  }
  moe.sparse_layers.assign(static_cast<size_t>(model.num_layers), true);
  return moe;
}

Status read_qwen_sparse_layers(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t step, reader.integer_or("decoder_sparse_step", 1, 1, 1 << 20));
  for (size_t layer = 0; layer < out.moe.sparse_layers.size(); ++layer)
    out.moe.sparse_layers[layer] = (static_cast<int64_t>(layer) + 1) % step == 0;
  if (!reader.has("mlp_only_layers")) return {};
  QUIRE_ASSIGN_OR_RETURN(const std::vector<double> dense, reader.numbers("mlp_only_layers"));
  for (const double layer : dense) {
    if (layer >= 0 && layer < static_cast<double>(out.num_layers))
      out.moe.sparse_layers[static_cast<size_t>(layer)] = false;
  }
  return {};
}

Status check_groups(const MoeConfig& moe) {
  if (moe.num_experts % moe.num_groups != 0) {
    return invalid_argument("config: n_group is {}, expected a divisor of the {} experts", moe.num_groups,
                            moe.num_experts);
  }
  const int32_t most = moe.groups_per_token * (moe.num_experts / moe.num_groups);
  if (moe.groups_per_token > moe.num_groups || most < moe.experts_per_token) {
    return invalid_argument("config: topk_group is {} of {} groups of {} experts, expected room for {} experts",
                            moe.groups_per_token, moe.num_groups, moe.num_experts / moe.num_groups,
                            moe.experts_per_token);
  }
  return {};
}

std::unique_ptr<nn::FeedForward> sparse_or_dense(nn::Loader& loader, const std::string& prefix,
                                                 const ModelConfig& config, int32_t layer) {
  if (!config.moe.sparse_layers[static_cast<size_t>(layer)]) {
    return std::make_unique<nn::GatedMlp>(loader, prefix + "mlp", config.hidden_size, config.intermediate_size,
                                          config.mlp_bias, config.activation);
  }
  return std::make_unique<nn::MoeBlock>(loader, prefix,
                                        nn::MoeOptions{.moe = config.moe,
                                                       .hidden_size = config.hidden_size,
                                                       .activation = config.activation,
                                                       .shared_bias = config.mlp_bias});
}

}  // namespace quire::models
