#include "models/moe_family.h"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/text_quote.h"

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

namespace {

void set_sparse_layers(int64_t first, int64_t step, MoeConfig& moe) {
  for (size_t i = 0; i < moe.sparse_layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    moe.sparse_layers[i] = layer >= first && layer % step == 0;
  }
}

// That the groups and the experts chosen fit.
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

Status set_groups(int64_t groups, int64_t kept, MoeConfig& moe) {
  moe.num_groups = static_cast<int32_t>(groups);
  moe.groups_per_token = static_cast<int32_t>(kept);
  return check_groups(moe);
}

}  // namespace

Result<MoeConfig> read_routed_moe(const boost::json::object& config, const ModelConfig& model,
                                  const RoutedMoeDefaults& defaults) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(MoeConfig moe, read_moe(config, model,
                                                 {.num_experts = defaults.num_experts,
                                                  .experts_per_token = defaults.experts_per_token,
                                                  .size_key = "moe_intermediate_size",
                                                  .size = defaults.size}));
  const int64_t num_shared = reader.mentions("n_shared_experts") ? 0 : defaults.num_shared;
  QUIRE_ASSIGN_OR_RETURN(const int64_t shared, reader.integer_or("n_shared_experts", num_shared, 0, 1 << 16));
  moe.shared_intermediate_size = shared * moe.intermediate_size;
  QUIRE_ASSIGN_OR_RETURN(moe.scale, reader.number_or("routed_scaling_factor", defaults.scale));
  QUIRE_ASSIGN_OR_RETURN(const int64_t first_sparse,
                         reader.integer_or("first_k_dense_replace", defaults.first_sparse, 0, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t step, reader.integer_or("moe_layer_freq", 1, 1, 1 << 20));
  set_sparse_layers(first_sparse, step, moe);
  return moe;
}

Result<MoeConfig> read_gguf_routed_moe(const GgufReader& reader, const ModelConfig& model,
                                       const RoutedMoeDefaults& defaults) {
  QUIRE_ASSIGN_OR_RETURN(MoeConfig moe, read_gguf_moe(reader, model, "expert_feed_forward_length"));
  QUIRE_ASSIGN_OR_RETURN(const int64_t shared, reader.integer("expert_shared_count", 0, 1 << 16));
  moe.shared_intermediate_size = shared * moe.intermediate_size;
  QUIRE_ASSIGN_OR_RETURN(moe.scale, reader.number_or("expert_weights_scale", defaults.scale));
  QUIRE_ASSIGN_OR_RETURN(const int64_t first_sparse,
                         reader.integer_or("leading_dense_block_count", defaults.first_sparse, 0, 1 << 20));
  set_sparse_layers(first_sparse, 1, moe);
  QUIRE_ASSIGN_OR_RETURN(moe.normalise, reader.boolean_or("expert_weights_norm", false));
  return moe;
}

Status read_mlp_layer_types(const boost::json::object& config, MoeConfig& moe) {
  const boost::json::value* found = config.if_contains("mlp_layer_types");
  if (found == nullptr || found->is_null()) return {};
  const auto wrong = [&] {
    return invalid_argument("config: mlp_layer_types is {}, expected \"dense\" or \"sparse\" for each of the {} layers",
                            checkpoint::in_quotes(boost::json::serialize(*found)), moe.sparse_layers.size());
  };
  const boost::json::array* types = found->if_array();
  if (types == nullptr || types->size() < moe.sparse_layers.size()) return wrong();
  for (size_t layer = 0; layer < moe.sparse_layers.size(); ++layer) {
    const bool sparse = (*types)[layer] == boost::json::value("sparse");
    if (!sparse && (*types)[layer] != boost::json::value("dense")) return wrong();
    moe.sparse_layers[layer] = sparse;
  }
  return {};
}

void set_sigmoid_router(MoeConfig& moe) {
  moe.score = RouterScore::kSigmoid;
  moe.correction_bias = true;
  moe.group_score = GroupScore::kSumOfBestTwo;
}

Status read_groups(const ConfigReader& reader, int64_t groups, int64_t kept, MoeConfig& moe) {
  QUIRE_ASSIGN_OR_RETURN(groups, reader.integer_or("n_group", groups, 1, moe.num_experts));
  QUIRE_ASSIGN_OR_RETURN(kept, reader.integer_or("topk_group", kept, 1, groups));
  return set_groups(groups, kept, moe);
}

Status read_gguf_groups(const GgufReader& reader, MoeConfig& moe) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t groups, reader.integer_or("expert_group_count", 1, 1, moe.num_experts));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kept, reader.integer_or("expert_group_used_count", 1, 1, groups));
  return set_groups(groups, kept, moe);
}

Status read_gguf_next_layers(const GgufReader& reader, int64_t fallback, ModelConfig& out) {
  constexpr std::string_view kKey = "nextn_predict_layers";
  constexpr int64_t kMost = 64;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> next, reader.metadata().integer(reader.full(kKey)));
  out.num_next_layers = static_cast<int32_t>(fallback);
  if (!next) return {};
  if (*next < 0 || *next >= out.num_layers) {
    return data_loss("metadata \"{}\" is {}, expected less than the {} layers", reader.full(kKey), *next,
                     out.num_layers);
  }
  if (*next > kMost) {
    return invalid_argument("metadata: {} is {}, expected an integer from 0 to {}", kKey, *next, kMost);
  }
  out.num_next_layers = static_cast<int32_t>(*next);
  out.num_layers -= out.num_next_layers;
  return {};
}

std::vector<std::string> prefixes_of_next_layers(const ModelConfig& config) {
  std::vector<std::string> prefixes;
  for (int32_t layer = config.num_layers; layer < config.num_layers + config.num_next_layers; ++layer) {
    prefixes.push_back(fmt::format("model.layers.{}.", layer));
    prefixes.push_back(fmt::format("blk.{}.", layer));
  }
  return prefixes;
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
