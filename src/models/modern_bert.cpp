#include "models/modern_bert.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"
#include "nn/norm.h"

namespace quire::models {

// 1. The numbers.

namespace {

// Newer files have "rope_parameters" by kind of layer, older ones two bases.
Result<double> rope_theta(const boost::json::object& config, const char* kind, const char* key, double fallback) {
  const boost::json::value* all = config.if_contains("rope_parameters");
  const boost::json::object* kinds = all == nullptr ? nullptr : all->if_object();
  const boost::json::value* one = kinds == nullptr ? nullptr : kinds->if_contains(kind);
  if (one == nullptr || !one->is_object()) return ConfigReader(config).number_or(key, fallback);
  const ConfigReader reader(one->get_object());
  QUIRE_ASSIGN_OR_RETURN(const std::string type, reader.text_or("rope_type", "default"));
  if (type != "default") {
    return unimplemented("config: rope_type of {} is \"{}\", supported: \"default\"", kind, type);
  }
  return reader.number_or("rope_theta", fallback);
}

// Windows: a token sees local_attention / 2 others each way.
Status read_windows(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t width, reader.integer_or("local_attention", 128, 1, kMostContext));
  QUIRE_ASSIGN_OR_RETURN(const int64_t every, reader.integer_or("global_attn_every_n_layers", 3, 1, 4096));
  const auto window = static_cast<int32_t>(width / 2 + 1);
  if (reader.has("layer_types")) {
    const boost::json::array* types = config.at("layer_types").if_array();
    if (types == nullptr || types->size() != static_cast<size_t>(out.num_layers)) {
      return invalid_argument("config: layer_types must name {} layers", out.num_layers);
    }
    for (const boost::json::value& type : *types) {
      if (type != "sliding_attention" && type != "full_attention") {
        return unimplemented("config: layer_types holds {}, supported: full_attention, sliding_attention",
                             boost::json::serialize(type));
      }
      out.layer_windows.push_back(type == "sliding_attention" ? window : 0);
    }
    return {};
  }
  for (int32_t i = 0; i < out.num_layers; ++i) out.layer_windows.push_back(i % every != 0 ? window : 0);
  return {};
}

}  // namespace

Result<ModelConfig> read_modern_bert_config(const boost::json::object& config,
                                            const boost::json::object& /*generation*/) {
  const ConfigReader reader(config);
  ModelConfig out;
  out.architecture = "ModernBertModel";
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, reader.integer("vocab_size", 1, 1 << 24));
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("hidden_size", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer("intermediate_size", 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("num_hidden_layers", 1, 4096));
  out.num_layers = static_cast<int32_t>(layers);
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("num_attention_heads", 1, 4096));
  if (out.hidden_size % (2 * heads) != 0 || out.hidden_size / heads > kMostHeadDim) {
    return invalid_argument(
        "config: hidden_size={} over num_attention_heads={}: expected heads of an even size, of at "
        "most 1024",
        out.hidden_size, heads);
  }
  out.num_heads = out.num_kv_heads = static_cast<int32_t>(heads);
  out.head_dim = static_cast<int32_t>(out.hidden_size / heads);
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  out.attends_both_ways = true;
  QUIRE_ASSIGN_OR_RETURN(out.max_position, reader.integer_or("max_position_embeddings", 8192, 1, kMostContext));
  QUIRE_ASSIGN_OR_RETURN(out.norm_eps, reader.number_or("norm_eps", 1e-5));
  if (out.norm_eps < 0) return invalid_argument("config: norm_eps is {}, expected at least 0", out.norm_eps);
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or("hidden_activation", "gelu"));
  QUIRE_ASSIGN_OR_RETURN(out.activation, parse_activation(activation));
  QUIRE_ASSIGN_OR_RETURN(out.attention_bias, reader.boolean_or("attention_bias", false));
  out.attention_output_bias = out.attention_bias;
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  ModernBertConfig own;
  QUIRE_ASSIGN_OR_RETURN(own.norm_bias, reader.boolean_or("norm_bias", false));
  QUIRE_ASSIGN_OR_RETURN(own.head_bias, reader.boolean_or("classifier_bias", false));
  QUIRE_ASSIGN_OR_RETURN(const std::string head, reader.text_or("classifier_activation", "gelu"));
  QUIRE_ASSIGN_OR_RETURN(own.head_activation, parse_activation(head));
  out.family = own;
  QUIRE_RETURN_IF_ERROR(read_windows(config, out));
  out.rope.rotary_dim = out.head_dim;
  RopeConfig local = out.rope;
  QUIRE_ASSIGN_OR_RETURN(out.rope.theta, rope_theta(config, "full_attention", "global_rope_theta", 160000.0));
  QUIRE_ASSIGN_OR_RETURN(local.theta, rope_theta(config, "sliding_attention", "local_rope_theta", 10000.0));
  QUIRE_RETURN_IF_ERROR(nn::validate(out.rope, out.head_dim).with_prefix("config: "));
  QUIRE_RETURN_IF_ERROR(nn::validate(local, out.head_dim).with_prefix("config: "));
  out.window_rope = local;
  return out;
}

namespace {

// 2. The parameters.

nn::AttentionConfig modern_attention(const ModelConfig& config, int32_t layer) {
  return {.hidden_size = config.hidden_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = static_cast<float>(config.attention_scale),
          .window = config.layer_windows[static_cast<size_t>(layer)],
          .both_ways = true};
}

nn::LayerNorm modern_norm(nn::Loader& loader, const std::string& name, const ModelConfig& config) {
  if (std::get<ModernBertConfig>(config.family).norm_bias) return {loader, name, config.hidden_size, config.norm_eps};
  return nn::LayerNorm::without_bias(loader, name, config.hidden_size, config.norm_eps);
}

struct ModernLayer {
  nn::LayerNorm attention_norm;  // the first layer has none: the embeddings are normalised already
  nn::Attention attention;
  nn::LayerNorm mlp_norm;
  nn::GatedMlp mlp;

  ModernLayer(nn::Loader& loader, const std::string& prefix, const ModelConfig& config, int32_t index)
      : attention_norm(index == 0 ? nn::LayerNorm() : modern_norm(loader, prefix + "attn_norm", config)),
        attention(loader, prefix, modern_attention(config, index),
                  {{prefix + "attn.Wqkv", 3 * config.hidden_size, config.attention_bias}},
                  {prefix + "attn.Wo", config.hidden_size, config.attention_output_bias}),
        mlp_norm(modern_norm(loader, prefix + "mlp_norm", config)),
        mlp(loader,
            nn::GatedMlp::Parts{.gate_up = {{prefix + "mlp.Wi", 2 * config.intermediate_size, config.mlp_bias}},
                                .down = {prefix + "mlp.Wo", config.hidden_size, config.mlp_bias}},
            config.activation) {}
};

class ModernBert final : public Model {
 public:
  ModernBert(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) : config_(config) {
    const std::string root = loader.has("model.embeddings.tok_embeddings.weight") ? "model." : "";
    tokens_ = nn::Embedding::of_tokens(loader, root + "embeddings.tok_embeddings.weight", config.vocab_size,
                                       config.hidden_size);
    embedding_norm_ = modern_norm(loader, root + "embeddings.norm", config);
    for (int32_t i = 0; i < config.num_layers; ++i) {
      const std::string prefix = fmt::format("{}layers.{}.", root, i);
      layers_.emplace_back(loader, prefix, config, i);
      if (!loader.has(prefix + "mlp_norm.weight")) break;
    }
    final_norm_ = modern_norm(loader, root + "final_norm", config);
    if (config.task == ModelTask::kClassify) {
      constexpr auto kExact = nn::WeightRole::kExact;
      head_ = {loader,
               "head.dense",
               config.hidden_size,
               config.hidden_size,
               std::get<ModernBertConfig>(config.family).head_bias,
               kExact};
      head_norm_ = modern_norm(loader, "head.norm", config);
      labels_ = {loader, "classifier", config.hidden_size, config.pooling.num_labels, /*bias=*/true, kExact};
    }
    rotary_ = {loader, config.rope, num_positions, {}};
    window_rotary_ = {loader, *config.window_rope, num_positions, {}};
  }

  const ModelConfig& config() const override { return config_; }
  // All layers' in turn, none of which gives blocks back behind its window.
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const override {
    nn::KvLayerSpec spec = layers_.front().attention.kv_layer(dtype);
    spec.window = 0;
    return {spec};
  }

  // 3. The way through.

  void embed(const nn::StepContext& step, nn::HiddenStates& states) const override {
    tokens_(step, step.batch.token_ids, states.residual);
    embedding_norm_(step, states, states.residual);
  }

  void run_layers(const nn::StepContext& step, int32_t begin, int32_t end, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const ModernLayer& layer = layers_[i];
      const bool is_local = config_.layer_windows[i] > 0;
      ops::View x = states.residual;
      if (layer.attention_norm.present()) {
        layer.attention_norm(step, states, normed);
        x = normed;
      }
      layer.attention(step, step.batch.layers.front(), is_local ? window_rotary_ : rotary_, x, states.delta);
      states.pending = true;
      layer.mlp_norm(step, states, normed);
      layer.mlp(step, normed, states.delta);
      states.pending = true;
    }
    step.workspace.rewind(mark);
  }

  ops::View finish(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    final_norm_(step, states, normed);
    return normed;
  }

  void scores(const nn::StepContext& step, const ops::View& pooled, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View inner = step.workspace.take(pooled.num_rows, config_.hidden_size);
    head_(step, pooled, inner);
    step(ops::ActivationArgs{.function = std::get<ModernBertConfig>(config_.family).head_activation,
                             .gated = false,
                             .in = inner,
                             .num_tokens = inner.num_rows,
                             .size = inner.num_columns,
                             .out = inner});
    head_norm_(step, inner);
    labels_(step, inner, out);
    step.workspace.rewind(mark);
  }

 private:
  ModelConfig config_;
  nn::Embedding tokens_;
  nn::LayerNorm embedding_norm_;
  std::vector<ModernLayer> layers_;
  nn::LayerNorm final_norm_;
  nn::Linear head_;
  nn::LayerNorm head_norm_;
  nn::Linear labels_;
  nn::Rotary rotary_;
  nn::Rotary window_rotary_;
};

}  // namespace

Result<std::unique_ptr<Model>> build_modern_bert(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  auto model = std::make_unique<ModernBert>(config, num_positions, loader);
  // Of a checkpoint that was trained on a head over the vocabulary: that head.
  std::vector<std::string_view> others = {"decoder."};
  if (config.task != ModelTask::kClassify) others.push_back("head.");
  QUIRE_RETURN_IF_ERROR(loader.finish({}, others));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace quire::models
