#include "models/next_layer.h"

#include <array>
#include <string>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/deepseek.h"
#include "models/glm4_moe.h"
#include "models/layer_head.h"
#include "models/qwen3_next.h"
#include "models/qwen_vl.h"

namespace quire::models {
namespace {

constexpr int64_t kMostNextLayers = 64;

// Of the models whose layers are read, those that say the same of them.
struct NextLayerKind {
  std::string_view architecture;  // as ModelConfig has it
  Family family;
  DecoderShape (*shape)(const ModelConfig& config);
  // The layer's tensors are "mtp.*" in safetensors, its norm is in front of what goes on as a state, too, and how many
  // there are is mtp_num_hidden_layers. Else it is behind the model's last, and its norm before the head alone.
  bool is_apart;
};

const std::array kNextLayerKinds = {
    NextLayerKind{"DeepseekV3ForCausalLM", kDeepseekV3Family, [](const ModelConfig&) { return deepseek_shape(); },
                  false},
    NextLayerKind{"Glm4MoeLiteForCausalLM", kGlm4MoeLiteFamily, [](const ModelConfig&) { return deepseek_shape(); },
                  false},
    NextLayerKind{"Glm4MoeForCausalLM", kGlm4MoeFamily, glm4_moe_shape, false},
    NextLayerKind{"Qwen3NextForCausalLM", kQwen3NextFamily, gated_attention_shape, true},
    NextLayerKind{"Qwen3_5ForCausalLM", kQwen35Family, gated_attention_shape, true},
    NextLayerKind{"Qwen3_5MoeForCausalLM", kQwen35MoeFamily, gated_attention_shape, true},
};

const NextLayerKind* kind_of(std::string_view architecture) {
  for (const NextLayerKind& kind : kNextLayerKinds) {
    if (kind.architecture == architecture) return &kind;
  }
  return nullptr;
}

Status not_read(std::string_view architecture) {
  std::string read;
  for (const NextLayerKind& kind : kNextLayerKinds) {
    read += fmt::format("{}{}", read.empty() ? "" : ", ", kind.architecture);
  }
  return unimplemented("layers that predict further tokens are read of {}; this is {}", read, architecture);
}

Status has_none(std::string_view key) {
  return invalid_argument("{} is 0: the model has no layer that predicts further tokens", key);
}

// The name of the text model's class, where a checkpoint says that of the larger one.
std::string text_class(std::string_view name) {
  constexpr std::string_view kLarger = "ForConditionalGeneration";
  if (!name.ends_with(kLarger)) return std::string(name);
  return fmt::format("{}ForCausalLM", name.substr(0, name.size() - kLarger.size()));
}

// The configuration of the model becomes that of one layer with attention.
ModelConfig of_one_layer(ModelConfig config) {
  config.family = NextLayerConfig{.index = config.num_layers, .num_next_layers = config.num_next_layers};
  if (!config.moe.sparse_layers.empty()) config.moe.sparse_layers = {true};
  config.recurrent_layers.clear();
  config.num_layers = 1;
  config.num_next_layers = 0;
  return config;
}

Status read_apart(const boost::json::object& whole, ModelConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object config, text_of_qwen(whole));
  const ConfigReader reader(config);
  constexpr const char* kCount = "mtp_num_hidden_layers";
  QUIRE_ASSIGN_OR_RETURN(const int64_t count, reader.integer_or(kCount, 1, 0, kMostNextLayers));
  if (count == 0) return has_none(kCount);
  QUIRE_ASSIGN_OR_RETURN(const bool own_embeddings, reader.boolean_or("mtp_use_dedicated_embeddings", false));
  if (own_embeddings) {
    return unimplemented("config: mtp_use_dedicated_embeddings is true: supported are the model's own embeddings");
  }
  out.num_next_layers = static_cast<int32_t>(count);
  return {};
}

}  // namespace

Result<ModelConfig> read_next_layer_config(const boost::json::object& config, const boost::json::object& generation) {
  const boost::json::value* names = config.if_contains("architectures");
  const boost::json::array* list = names == nullptr ? nullptr : names->if_array();
  const boost::json::string* name = list != nullptr && list->size() == 1 ? list->front().if_string() : nullptr;
  const NextLayerKind* kind = name == nullptr ? nullptr : kind_of(text_class(*name));
  if (kind == nullptr) return not_read(name == nullptr ? "of no single architecture" : std::string_view(*name));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, kind->family.read_config(config, generation));
  if (kind->is_apart) {
    QUIRE_RETURN_IF_ERROR(read_apart(config, out));
  } else if (out.num_next_layers == 0) {
    return has_none("num_nextn_predict_layers");
  }
  return of_one_layer(std::move(out));
}

Result<ModelConfig> read_next_layer_gguf(const checkpoint::Checkpoint& checkpoint) {
  const NextLayerKind* kind = kind_of(checkpoint.gguf()->model_class);
  if (kind == nullptr) return not_read(checkpoint.gguf()->model_class);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, kind->family.read_gguf(checkpoint));
  if (out.num_next_layers == 0) return has_none("metadata: nextn_predict_layers");
  return of_one_layer(std::move(out));
}

Result<std::unique_ptr<Model>> build_next_layer(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  const auto& own = std::get<NextLayerConfig>(config.family);
  const NextLayerKind& kind = *kind_of(config.architecture);
  const std::string behind = fmt::format("model.layers.{}.", own.index);
  const std::string gguf = fmt::format("blk.{}.nextn.", own.index);
  LayerHeadShape shape{.decoder = kind.shape(config), .goes_on_normed = kind.is_apart};
  std::vector<std::string> others;  // the model's own, repeated in the layer or not, and the layers behind this one
  if (loader.has_weight(gguf + "eh_proj.weight")) {
    const bool has_norm = loader.has(gguf + "shared_head_norm.weight");
    shape.layer = behind;
    shape.join = gguf + "eh_proj";
    shape.token_norm = gguf + "enorm";
    shape.state_norm = gguf + "hnorm";
    shape.norm = has_norm ? gguf + "shared_head_norm" : "model.norm";
    others = {gguf + "embed_tokens.", gguf + "shared_head_head."};
  } else if (kind.is_apart) {
    shape.layer = "mtp.layers.0.";
    shape.join = "mtp.fc";
    shape.token_norm = "mtp.pre_fc_norm_embedding";
    shape.state_norm = "mtp.pre_fc_norm_hidden";
    shape.norm = "mtp.norm";
    others = {"model.", "language_model.", "visual."};
    for (int32_t i = 1; i < own.num_next_layers; ++i) others.push_back(fmt::format("mtp.layers.{}.", i));
  } else {
    shape.layer = behind;
    shape.join = behind + "eh_proj";
    shape.token_norm = behind + "enorm";
    shape.state_norm = behind + "hnorm";
    shape.norm = behind + "shared_head.norm";
    others = {behind + "embed_tokens.", behind + "shared_head.head."};
  }
  auto model = build_layer_head(shape, config, num_positions, loader);
  for (const char* name : {"model.embed_tokens.", "model.norm.", "lm_head.", "rope_freqs."}) others.emplace_back(name);
  for (int32_t i = 0; i < own.index + own.num_next_layers; ++i) {
    if (i == own.index) continue;
    others.push_back(fmt::format("model.layers.{}.", i));
    others.push_back(fmt::format("blk.{}.", i));
  }
  constexpr std::string_view kBuffer = ".rotary_emb.inv_freq";
  const std::vector<std::string_view> elsewhere(others.begin(), others.end());
  QUIRE_RETURN_IF_ERROR(loader.finish({&kBuffer, 1}, {}, elsewhere));
  return model;
}

}  // namespace quire::models
