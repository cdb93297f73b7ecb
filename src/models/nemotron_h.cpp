#include "models/nemotron_h.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/mamba_family.h"
#include "models/moe_family.h"
#include "models/plain_mlp.h"
#include "nn/linear.h"
#include "nn/mamba2.h"

namespace quire::models {
namespace {

constexpr int64_t kMostInnerNumbers = 1 << 22;  // of a feed-forward block
constexpr double kUsualLeastStep = 0.001;

const NemotronHConfig& nemotron_of(const ModelConfig& config) {
  return std::get<NemotronHConfig>(config.family);
}

// Experts that read and write fewer numbers than the stream has. The router and the shared expert see all of them.
class NarrowExperts final : public nn::FeedForward {
 public:
  NarrowExperts(nn::Loader& loader, const std::string& prefix, const ModelConfig& config)
      : size_(nemotron_of(config).expert_input_size),
        in_(loader, prefix + "mixer.fc1_latent_proj", config.hidden_size, size_, config.mlp_bias),
        experts_(loader, prefix, routed_of(config)),
        out_(loader, prefix + "mixer.fc2_latent_proj", size_, config.hidden_size, config.mlp_bias),
        shared_(plain_mlp(loader, prefix, config, "mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj",
                          config.moe.shared_intermediate_size)) {}

  DType input_dtype(const nn::StepContext& /*step*/) const override { return DType::kF32; }
  void operator()(const nn::StepContext& step, const ops::ConstView& x, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View narrow = step.workspace.take(x.num_rows, size_);
    const ops::View given = step.workspace.take(x.num_rows, size_);
    const ops::View shared = step.workspace.take(out.num_rows, out.num_columns);
    in_(step, x, narrow);
    experts_.run(step, x, narrow, given);
    out_(step, given, out);
    (*shared_)(step, x, shared);
    step(ops::AddArgs{
        .hidden = out.floats(), .delta = shared.floats(), .num_tokens = out.num_rows, .size = out.num_columns});
    step.workspace.rewind(mark);
  }

 private:
  static nn::MoeOptions routed_of(const ModelConfig& config) {
    nn::MoeOptions options{.moe = config.moe,
                           .hidden_size = nemotron_of(config).expert_input_size,
                           .router_size = config.hidden_size,
                           .activation = config.activation};
    options.moe.shared_intermediate_size = 0;
    return options;
  }

  int64_t size_;
  nn::Linear in_;
  nn::MoeBlock experts_;
  nn::Linear out_;
  std::unique_ptr<nn::FeedForward> shared_;
};

std::unique_ptr<nn::FeedForward> nemotron_mlp(nn::Loader& loader, const std::string& prefix, const ModelConfig& config,
                                              int32_t layer) {
  if (nemotron_of(config).blocks[static_cast<size_t>(layer)] == NemotronBlock::kMlp) {
    return plain_mlp(loader, prefix, config, "mixer.up_proj", "mixer.down_proj");
  }
  if (nemotron_of(config).expert_input_size > 0) return std::make_unique<NarrowExperts>(loader, prefix, config);
  return std::make_unique<nn::MoeBlock>(loader, prefix,
                                        nn::MoeOptions{.moe = config.moe,
                                                       .hidden_size = config.hidden_size,
                                                       .activation = config.activation,
                                                       .shared_bias = config.mlp_bias});
}

std::unique_ptr<nn::SelfAttention> nemotron_mixer(nn::Loader& loader, const std::string& prefix,
                                                  const ModelConfig& config, int32_t layer) {
  if (nemotron_of(config).blocks[static_cast<size_t>(layer)] == NemotronBlock::kAttention) {
    return std::make_unique<nn::Attention>(loader, prefix + "mixer", attention_config({}, config, layer));
  }
  return std::make_unique<nn::Mamba2>(
      loader, prefix + "mixer",
      nn::Mamba2Options{
          .sizes = nemotron_of(config).mamba, .hidden_size = config.hidden_size, .norm_eps = config.norm_eps});
}

void shape_nemotron_layer(const ModelConfig& config, int32_t layer, DecoderShape& shape) {
  const NemotronBlock block = nemotron_of(config).blocks[static_cast<size_t>(layer)];
  shape.has_attention = block == NemotronBlock::kMamba || block == NemotronBlock::kAttention;
  shape.has_mlp = !shape.has_attention;
}

struct NemotronBlockName {
  char letter;
  std::string_view name;
  std::string_view older_name;
  NemotronBlock block;
};
constexpr auto kNemotronBlocks = std::to_array<NemotronBlockName>({
    {'M', "linear_attention", "mamba", NemotronBlock::kMamba},
    {'*', "full_attention", "attention", NemotronBlock::kAttention},
    {'-', "mlp", "mlp", NemotronBlock::kMlp},
    {'E', "moe", "moe", NemotronBlock::kExperts},
});

Result<std::vector<NemotronBlock>> read_block_list(const boost::json::object& config, std::string_view key) {
  std::vector<NemotronBlock> blocks;
  const boost::json::array* names = config.at(key).if_array();
  if (names == nullptr) return invalid_argument("config: {} must be a list of names, one for each layer", key);
  for (const boost::json::value& name : *names) {
    const auto found = std::ranges::find_if(kNemotronBlocks, [&](const NemotronBlockName& one) {
      return name.is_string() && (name.get_string() == one.name || name.get_string() == one.older_name);
    });
    if (found == kNemotronBlocks.end()) {
      return invalid_argument(
          "config: {} has {} for layer {}, expected \"linear_attention\", \"full_attention\", \"mlp\" or \"moe\"", key,
          boost::json::serialize(name), blocks.size());
    }
    blocks.push_back(found->block);
  }
  return blocks;
}

// The list of blocks, or the older pattern with a letter for each.
Result<std::vector<NemotronBlock>> read_blocks(const boost::json::object& config) {
  constexpr const char* kPattern = "hybrid_override_pattern";
  const ConfigReader reader(config);
  for (const char* key : {"layers_block_type", "layer_types"}) {
    if (reader.has(key)) return read_block_list(config, key);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string pattern, reader.text_or(kPattern, "ME*-"));
  std::vector<NemotronBlock> blocks;
  for (const char letter : pattern) {
    const auto found = std::ranges::find(kNemotronBlocks, letter, &NemotronBlockName::letter);
    if (found == kNemotronBlocks.end()) {
      return invalid_argument("config: {} has '{}' for layer {}, expected M, *, - or E", kPattern, letter,
                              blocks.size());
    }
    blocks.push_back(found->block);
  }
  return blocks;
}

// Older names of what a layer of Mamba is, which go before the others.
void use_older_names(boost::json::object& config) {
  constexpr std::pair<const char*, const char*> kNames[] = {
      {"mamba_n_groups", "n_groups"},        {"mamba_d_conv", "conv_kernel"},      {"mamba_dt_min", "time_step_min"},
      {"mamba_dt_limit", "time_step_limit"}, {"mamba_conv_bias", "use_conv_bias"},
  };
  for (const auto& [older, name] : kNames) {
    if (config.contains(older)) config[name] = boost::json::value(config[older]);
  }
}

// What the reference takes no notice of, and other implementations do.
Status check_unused(const boost::json::object& config) {
  const ConfigReader reader(config);
  for (const char* key : {"attention_bias", "tie_word_embeddings", "mamba_proj_bias"}) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_set, reader.boolean_or(key, false));
    if (is_set) return unimplemented("config: {} is true, which the reference ignores; supported: false", key);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config));
  if (window) {
    return unimplemented("config: sliding_window is {}, which the reference ignores; supported: null", *window);
  }
  Mamba2Config limits;
  QUIRE_RETURN_IF_ERROR(read_step_limits(config, limits));
  if (limits.least_step != 0 || limits.most_step != 0) {
    return unimplemented("config: time_step_limit is {}, which the reference ignores; supported: 0 and infinity",
                         boost::json::serialize(config.at("time_step_limit")));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or("mamba_hidden_act", "silu"));
  if (activation != "silu") return unimplemented("config: mamba_hidden_act is {}; supported: silu", activation);
  return {};
}

Result<Mamba2Config> read_nemotron_mamba(const boost::json::object& config) {
  const ConfigReader reader(config);
  Mamba2Config sizes;
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer_or("mamba_num_heads", 128, 1, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const int64_t head_dim, reader.integer_or("mamba_head_dim", 64, 1, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const int64_t groups, reader.integer_or("n_groups", 8, 1, heads));
  QUIRE_ASSIGN_OR_RETURN(const int64_t state, reader.integer_or("ssm_state_size", 128, 1, ops::kMostRecurrenceKeyDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kernel, reader.integer_or("conv_kernel", 4, 2, ops::kMostConvTokens));
  if (heads % groups != 0) {
    return invalid_argument("config: mamba_num_heads is {}, expected a multiple of the {} groups (n_groups)", heads,
                            groups);
  }
  sizes.num_heads = static_cast<int32_t>(heads);
  sizes.head_dim = static_cast<int32_t>(head_dim);
  sizes.state_size = static_cast<int32_t>(state);
  sizes.num_groups = static_cast<int32_t>(groups);
  sizes.conv_kernel = static_cast<int32_t>(kernel);
  QUIRE_ASSIGN_OR_RETURN(sizes.conv_bias, reader.boolean_or("use_conv_bias", true));
  QUIRE_ASSIGN_OR_RETURN(sizes.projection_bias, reader.boolean_or("use_bias", false));
  sizes.output_bias = sizes.projection_bias;
  QUIRE_ASSIGN_OR_RETURN(sizes.least_step, reader.number_or("time_step_min", kUsualLeastStep));
  if (sizes.least_step < 0) {
    return invalid_argument("config: time_step_min is {}, expected at least 0", sizes.least_step);
  }
  return sizes;
}

Status read_nemotron_experts(const boost::json::object& config, ModelConfig& out, NemotronHConfig& own) {
  constexpr int64_t kUsualSize = 7688;
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(
      out.moe,
      read_routed_moe(config, out,
                      {.num_experts = 8, .experts_per_token = 2, .size = kUsualSize, .num_shared = 1, .scale = 1}));
  QUIRE_ASSIGN_OR_RETURN(const int64_t num_shared, reader.integer_or("n_shared_experts", 1, 0, 1 << 16));
  if (num_shared != 1) return unimplemented("config: n_shared_experts is {}; supported: 1", num_shared);
  QUIRE_ASSIGN_OR_RETURN(out.moe.shared_intermediate_size,
                         reader.integer_or("moe_shared_expert_intermediate_size", kUsualSize, 1, kMostInnerNumbers));
  QUIRE_ASSIGN_OR_RETURN(own.expert_input_size, reader.integer_or("moe_latent_size", 0, 1, kMostInnerNumbers));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("norm_topk_prob", true));
  set_sigmoid_router(out.moe);
  out.moe.gated = false;
  for (size_t layer = 0; layer < own.blocks.size(); ++layer)
    out.moe.sparse_layers[layer] = own.blocks[layer] == NemotronBlock::kExperts;
  return read_groups(reader, 1, 1, out.moe);
}

// Of what each layer is made follows from its heads of keys and the size of its feed-forward block.
Result<std::vector<NemotronBlock>> read_gguf_blocks(const GgufReader& reader, const ModelConfig& model,
                                                    bool has_experts) {
  const int64_t layers = model.num_layers + model.num_next_layers;
  constexpr std::string_view kSizes = "feed_forward_length";
  QUIRE_ASSIGN_OR_RETURN(const auto sizes, reader.integers_of_layers(kSizes, layers, 0, kMostInnerNumbers));
  std::vector<NemotronBlock> blocks;
  for (size_t layer = 0; layer < static_cast<size_t>(model.num_layers); ++layer) {
    const bool attends = model.recurrent_layers.empty() || !model.recurrent_layers[layer];
    if (attends && sizes[layer] > 0) {
      return unimplemented(
          "metadata: layer {} has attention and a feed-forward block (\"{}\" {}); supported: one of them", layer,
          reader.full(kSizes), sizes[layer]);
    }
    if (sizes[layer] == 0) {
      blocks.push_back(attends ? NemotronBlock::kAttention : NemotronBlock::kMamba);
    } else {
      blocks.push_back(has_experts ? NemotronBlock::kExperts : NemotronBlock::kMlp);
      if (has_experts || sizes[layer] == model.intermediate_size) continue;
      return unimplemented("metadata \"{}\" has {} and {}; supported: one size, and 0 for other layers",
                           reader.full(kSizes), model.intermediate_size, sizes[layer]);
    }
  }
  return blocks;
}

Status read_gguf_nemotron_experts(const GgufReader& reader, ModelConfig& out, NemotronHConfig& own) {
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length"));
  QUIRE_ASSIGN_OR_RETURN(const int64_t num_shared, reader.integer_or("expert_shared_count", 1, 0, 1 << 16));
  if (num_shared != 1) {
    return unimplemented("metadata \"{}\" is {}; supported: 1", reader.full("expert_shared_count"), num_shared);
  }
  QUIRE_ASSIGN_OR_RETURN(out.moe.shared_intermediate_size,
                         reader.integer("expert_shared_feed_forward_length", 1, kMostInnerNumbers));
  QUIRE_ASSIGN_OR_RETURN(own.expert_input_size, reader.integer_or("moe_latent_size", 0, 0, kMostInnerNumbers));
  QUIRE_ASSIGN_OR_RETURN(out.moe.scale, reader.number_or("expert_weights_scale", 1));
  QUIRE_ASSIGN_OR_RETURN(out.moe.normalise, reader.boolean_or("expert_weights_norm", true));
  set_sigmoid_router(out.moe);
  out.moe.gated = false;
  for (size_t layer = 0; layer < own.blocks.size(); ++layer)
    out.moe.sparse_layers[layer] = own.blocks[layer] == NemotronBlock::kExperts;
  return read_gguf_groups(reader, out.moe);
}

// What follows from which block each layer is.
void set_blocks(const NemotronHConfig& own, ModelConfig& out) {
  out.recurrent_layers.clear();
  out.attention_layers.clear();
  out.unrotated_layers.assign(own.blocks.size(), true);
  for (const NemotronBlock block : own.blocks) {
    out.recurrent_layers.push_back(block == NemotronBlock::kMamba);
    out.attention_layers.push_back(block == NemotronBlock::kAttention);
  }
}

bool has_block(const NemotronHConfig& own, NemotronBlock block) {
  return std::ranges::find(own.blocks, block) != own.blocks.end();
}

}  // namespace

Result<ModelConfig> read_nemotron_h_config(const boost::json::object& stated, const boost::json::object& generation) {
  boost::json::object config = stated;
  use_older_names(config);
  NemotronHConfig own;
  QUIRE_ASSIGN_OR_RETURN(own.blocks, read_blocks(config));
  config["num_hidden_layers"] = static_cast<int64_t>(own.blocks.size());  // whatever is said
  QUIRE_RETURN_IF_ERROR(check_unused(config));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 8,
                                                               .head_dim = 128,
                                                               .max_position = 4096,
                                                               .norm_eps_key = "layer_norm_epsilon",
                                                               .norm_eps = 1e-5,
                                                               .partial_rotary = true,
                                                               .activation_key = "mlp_hidden_act",
                                                               .activation = "relu2"}));
  out.architecture = "NemotronHForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(config).boolean_or("mlp_bias", false));
  set_blocks(own, out);
  if (has_block(own, NemotronBlock::kExperts)) QUIRE_RETURN_IF_ERROR(read_nemotron_experts(config, out, own));
  if (has_block(own, NemotronBlock::kMamba)) {
    QUIRE_ASSIGN_OR_RETURN(own.mamba, read_nemotron_mamba(config));
  } else {
    out.recurrent_layers.clear();  // without a state it is no recurrent model
  }
  out.family = std::move(own);
  return out;
}

Result<ModelConfig> read_nemotron_h_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  GgufDecoder decoder{.activation = Activation::kRelu2, .recurrent_layers = true, .layers_without_mlp = true};
  if (!reader.has(decoder.norm_eps_key)) decoder.norm_eps_key = "attention.layer_norm_epsilon";
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, decoder));
  out.architecture = "NemotronHForCausalLM";
  QUIRE_RETURN_IF_ERROR(read_gguf_next_layers(reader, 0, out));
  const bool has_experts = reader.has_tensor_that_ends_with(".mixer.experts.up_proj.weight");
  NemotronHConfig own;
  QUIRE_ASSIGN_OR_RETURN(own.blocks, read_gguf_blocks(reader, out, has_experts));
  set_blocks(own, out);
  out.mlp_bias = reader.has_tensor_that_ends_with(".mixer.up_proj.bias") ||
                 reader.has_tensor_that_ends_with(".mixer.shared_experts.up_proj.bias");
  if (has_block(own, NemotronBlock::kExperts)) QUIRE_RETURN_IF_ERROR(read_gguf_nemotron_experts(reader, out, own));
  if (has_block(own, NemotronBlock::kMamba)) {
    QUIRE_RETURN_IF_ERROR(read_gguf_mamba(reader, own.mamba));
    own.mamba.conv_bias = reader.has_tensor_that_ends_with(".mixer.conv1d.bias");
    own.mamba.projection_bias = reader.has_tensor_that_ends_with(".mixer.in_proj.bias");
    own.mamba.output_bias = reader.has_tensor_that_ends_with(".mixer.out_proj.bias");
    own.mamba.least_step = kUsualLeastStep;  // GGUF does not say
  } else {
    out.recurrent_layers.clear();
  }
  out.family = std::move(own);
  return out;
}

Result<std::unique_ptr<Model>> build_nemotron_h(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  const bool is_backbone = loader.has("backbone.embeddings.weight");
  std::vector<std::string> next_layers = prefixes_of_next_layers(config);  // GGUF's
  for (int32_t layer = config.num_layers; layer < config.num_layers + config.num_next_layers; ++layer)
    next_layers.push_back(fmt::format("backbone.layers.{}.", layer));
  std::vector<std::string_view> others = {"mtp."};
  others.insert(others.end(), next_layers.begin(), next_layers.end());
  return build_decoder({.before_attention = "norm",
                        .before_mlp = "norm",
                        .after_layers = "norm_f",
                        .feed_forward = nemotron_mlp,
                        .attention = nemotron_mixer,
                        .of_layer = shape_nemotron_layer,
                        .root = is_backbone ? "backbone" : "model",
                        .embeddings = "embeddings",
                        .others = others},
                       config, num_positions, loader);
}

}  // namespace quire::models
