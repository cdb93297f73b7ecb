#include "models/llama4.h"

#include <algorithm>
#include <utility>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

constexpr int64_t kChunk = 8192;
constexpr int64_t kUnrotatedInterval = 4;
constexpr double kScaleStrength = 0.1;
constexpr int64_t kScalePeriod = 8192;
constexpr int64_t kScoutExperts = 16;  // Maverick has 128, and no norms of queries and keys

void set_llama4(ModelConfig& out) {
  out.architecture = "Llama4ForCausalLM";
  out.rope.interleaved = true;
  out.moe.score = RouterScore::kSigmoid;
  out.moe.weighs_inputs = true;
  out.moe.shared_intermediate_size = out.moe.intermediate_size;
  if (std::ranges::find(out.unrotated_layers, true) == out.unrotated_layers.end()) out.query_growth.strength = 0;
}

// Layers with chunks; the type of each may be named. nullopt: there are none.
Result<std::optional<int64_t>> read_chunk(const boost::json::object& config, const ModelConfig& model) {
  const ConfigReader reader(config);
  std::optional<int64_t> chunk;
  if (!reader.mentions("attention_chunk_size") || reader.has("attention_chunk_size")) {
    QUIRE_ASSIGN_OR_RETURN(chunk, reader.integer_or("attention_chunk_size", kChunk, 1, kMostContext));
  }
  const auto& unrotated = model.unrotated_layers;
  bool any = chunk && std::ranges::find(unrotated, false) != unrotated.end();
  if (reader.has("layer_types")) {
    const boost::json::array* types = config.at("layer_types").if_array();
    if (types == nullptr || std::ssize(*types) != model.num_layers) {
      return invalid_argument("config: layer_types must be a list of {} names, one a layer", model.num_layers);
    }
    any = false;
    for (const boost::json::value& type : *types) {
      any = any || type == "chunked_attention";
      if (type == "chunked_attention" || type == "full_attention") continue;
      return unimplemented("config: layer_types has {}; supported: \"full_attention\", \"chunked_attention\"",
                           boost::json::serialize(type));
    }
    if (any && !chunk)
      return invalid_argument("config: layer_types has chunked_attention, and attention_chunk_size is null");
  }
  return any ? chunk : std::nullopt;
}

// "moe_layers", or every "interleave_moe_layer_step"-th.
Status read_sparse_layers(const ConfigReader& reader, std::vector<bool>& sparse) {
  if (!reader.has("moe_layers")) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t step, reader.integer_or("interleave_moe_layer_step", 1, 1, 1 << 20));
    for (size_t i = 0; i < sparse.size(); ++i) sparse[i] = static_cast<int64_t>(i + 1) % step == 0;
    return {};
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<double> layers, reader.numbers("moe_layers"));
  sparse.assign(sparse.size(), false);
  for (const double layer : layers) {
    if (layer >= 0 && layer < static_cast<double>(sparse.size())) sparse[static_cast<size_t>(layer)] = true;
  }
  return {};
}

Status read_llama4_experts(const boost::json::object& config, ModelConfig& out) {
  std::vector<bool> sparse(static_cast<size_t>(out.num_layers));
  QUIRE_RETURN_IF_ERROR(read_sparse_layers(ConfigReader(config), sparse));
  // Models without experts (Llama Guard 4) say that they have 0.
  if (std::ranges::find(sparse, true) != sparse.end()) {
    QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, {.num_experts = kScoutExperts, .experts_per_token = 1}));
    if (out.moe.experts_per_token != 1) {
      return unimplemented("config: num_experts_per_tok is {}, which is not supported; supported: 1",
                           out.moe.experts_per_token);
    }
  }
  out.moe.sparse_layers = std::move(sparse);
  return {};
}

Status read_growth(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader reader(config);
  // Some configurations have a number here.
  const boost::json::value* tuned = config.if_contains("attn_temperature_tuning");
  bool is_tuned = true;
  if (tuned != nullptr && tuned->is_int64()) {
    is_tuned = tuned->get_int64() != 0;
  } else {
    QUIRE_ASSIGN_OR_RETURN(is_tuned, reader.boolean_or("attn_temperature_tuning", true));
  }
  out.query_growth = {.shift = 1, .of_unrotated = true};
  QUIRE_ASSIGN_OR_RETURN(const double strength, reader.number_or("attn_scale", kScaleStrength));
  QUIRE_ASSIGN_OR_RETURN(const int64_t period, reader.integer_or("floor_scale", kScalePeriod, 1, kMostContext));
  out.query_growth.strength = is_tuned ? strength : 0;
  out.query_growth.period = static_cast<double>(period);
  return {};
}

void of_llama4_layer(const ModelConfig& config, int32_t layer, DecoderShape& shape) {
  const bool rotates = !config.unrotated_layers[static_cast<size_t>(layer)];
  shape.qk_norm = rotates && config.norms_heads ? nn::QkNorm::kHeadPlain : nn::QkNorm::kNone;
}

std::unique_ptr<nn::FeedForward> build_llama4_mlp(nn::Loader& loader, const std::string& prefix,
                                                  const ModelConfig& config, int32_t layer) {
  if (config.moe.sparse_layers[static_cast<size_t>(layer)]) {
    return std::make_unique<nn::MoeBlock>(loader, prefix,
                                          nn::MoeOptions{.moe = config.moe,
                                                         .hidden_size = config.hidden_size,
                                                         .activation = config.activation,
                                                         .stacks_transposed = true});
  }
  return std::make_unique<nn::GatedMlp>(loader, prefix + "feed_forward", config.hidden_size, config.intermediate_size,
                                        /*bias=*/false, config.activation);
}

}  // namespace

Result<ModelConfig> read_llama4_config(const boost::json::object& whole, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object config, text_config(whole));
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(
          config, generation,
          {.num_kv_heads = 8, .head_dim = 128, .max_position = 131072, .norm_eps = 1e-5, .rope_theta = 5e5}));
  const ConfigReader reader(config);
  QUIRE_RETURN_IF_ERROR(read_llama4_experts(config, out));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer_or("intermediate_size_mlp", 16384, 1, 1 << 22));
  QUIRE_RETURN_IF_ERROR(read_unrotated_layers(reader, kUnrotatedInterval, out));
  QUIRE_RETURN_IF_ERROR(read_growth(config, out));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> chunk, read_chunk(config, out));
  if (chunk) out.max_position = std::min(out.max_position, *chunk);
  QUIRE_ASSIGN_OR_RETURN(out.norms_heads, reader.boolean_or("use_qk_norm", true));
  // Norms behind the rotation would take its factor away again.
  if (out.norms_heads && (out.rope.scaling == RopeScaling::kYarn || out.rope.scaling == RopeScaling::kLongRope)) {
    return unimplemented("config: use_qk_norm is true and the rope's type yarn or longrope; supported: one of them");
  }
  set_llama4(out);
  return out;
}

Result<ModelConfig> read_llama4_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.interleaved = true}));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length", 1));
  if (out.moe.experts_per_token != 1) {
    return unimplemented("metadata \"{}\" is {}, which is not supported; supported: 1",
                         reader.full("expert_used_count"), out.moe.experts_per_token);
  }
  QUIRE_ASSIGN_OR_RETURN(const int64_t step, reader.integer("interleave_moe_layer_step", 1, 1 << 20));
  for (size_t i = 0; i < out.moe.sparse_layers.size(); ++i)
    out.moe.sparse_layers[i] = static_cast<int64_t>(i + 1) % step == 0;
  // The numbers of attention are not in the file.
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window(kChunk));
  if (!window) {
    return unimplemented("metadata \"{}\" is 0, which is not supported; supported: layers with chunks",
                         reader.full("attention.sliding_window"));
  }
  out.max_position = std::min(out.max_position, kChunk);
  out.query_growth = {.strength = kScaleStrength, .period = kScalePeriod, .shift = 1, .of_unrotated = true};
  set_unrotated_layers(kUnrotatedInterval, out);
  out.norms_heads = out.moe.num_experts != 128;
  set_llama4(out);
  return out;
}

Result<std::unique_ptr<Model>> build_llama4(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape{.feed_forward = build_llama4_mlp, .of_layer = of_llama4_layer};
  find_text_model(loader, shape);
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
