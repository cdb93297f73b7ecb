#include "models/opt.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"
#include "nn/norm.h"

namespace quire::models {
namespace {

constexpr int64_t kPositionOffset = 2;  // rows of the table of positions that nothing uses
constexpr double kNormEps = 1e-5;

}  // namespace

// 1. The numbers.

Result<ModelConfig> read_opt_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  ModelConfig out;
  OptConfig own;
  out.architecture = "OPTForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, reader.integer_or("vocab_size", 50272, 1, 1 << 24));
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("hidden_size", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer("ffn_dim", 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("num_hidden_layers", 1, 4096));
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("num_attention_heads", 1, 4096));
  if (out.hidden_size % heads != 0 || out.hidden_size / heads > 1024) {
    return invalid_argument(
        "config: hidden_size={} over num_attention_heads={}: expected a multiple, of at most 1024 times as much",
        out.hidden_size, heads);
  }
  QUIRE_ASSIGN_OR_RETURN(out.max_position, reader.integer_or("max_position_embeddings", 2048, 1, int64_t{1} << 30));
  QUIRE_ASSIGN_OR_RETURN(own.embedding_size, reader.integer_or("word_embed_proj_dim", out.hidden_size, 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(out.attention_bias, reader.boolean_or("enable_bias", true));
  out.attention_output_bias = out.mlp_bias = out.attention_bias;
  QUIRE_ASSIGN_OR_RETURN(own.norm_parameters, reader.boolean_or("layer_norm_elementwise_affine", true));
  QUIRE_ASSIGN_OR_RETURN(own.norm_before, reader.boolean_or("do_layer_norm_before", true));
  QUIRE_ASSIGN_OR_RETURN(const bool no_final_norm, reader.boolean_or("_remove_final_layer_norm", false));
  own.final_norm = own.norm_before && !no_final_norm;
  QUIRE_ASSIGN_OR_RETURN(out.tie_word_embeddings, reader.boolean_or("tie_word_embeddings", true));
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or("activation_function", "relu"));
  QUIRE_ASSIGN_OR_RETURN(out.activation, parse_activation(activation));
  out.num_layers = static_cast<int32_t>(layers);
  out.num_heads = out.num_kv_heads = static_cast<int32_t>(heads);
  out.head_dim = static_cast<int32_t>(out.hidden_size / heads);
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  QUIRE_RETURN_IF_ERROR(read_special_ids(config, generation, out));
  out.family = own;
  return out;
}

namespace {

const OptConfig& of_opt(const ModelConfig& config) {
  return std::get<OptConfig>(config.family);
}

// 2. The parameters.

nn::AttentionConfig opt_attention(const ModelConfig& config) {
  nn::AttentionConfig out = attention_config({}, config, 0);
  out.output_name = "out_proj";
  return out;
}

nn::LayerNorm layer_norm(nn::Loader& loader, const std::string& name, const ModelConfig& config) {
  return {loader, name, config.hidden_size, kNormEps, of_opt(config).norm_parameters};
}

struct OptLayer {
  nn::Attention attention;
  nn::LayerNorm attention_norm;
  nn::PlainMlp mlp;
  nn::LayerNorm mlp_norm;

  OptLayer(nn::Loader& loader, const std::string& prefix, const ModelConfig& config)
      : attention(loader, prefix + "self_attn", opt_attention(config)),
        attention_norm(layer_norm(loader, prefix + "self_attn_layer_norm", config)),
        mlp(loader, {prefix + "fc1", config.intermediate_size, config.mlp_bias},
            {prefix + "fc2", config.hidden_size, config.mlp_bias}, config.activation),
        mlp_norm(layer_norm(loader, prefix + "final_layer_norm", config)) {}
};

class Opt final : public Model {
 public:
  Opt(const ModelConfig& config, nn::Loader& loader) : config_(config), own_(of_opt(config)) {
    const std::string root = loader.has("decoder.embed_tokens.weight") ? "decoder" : "model.decoder";
    loader.begin_front();
    tokens_ = nn::Embedding::of_tokens(loader, root + ".embed_tokens.weight", config.vocab_size, own_.embedding_size);
    positions_ = {loader, root + ".embed_positions.weight", config.max_position + kPositionOffset, config.hidden_size,
                  kPositionOffset};
    if (projects()) project_in_ = {loader, root + ".project_in", own_.embedding_size, config.hidden_size};
    for (int32_t i = 0; i < config.num_layers; ++i) {
      loader.begin_layer(i, config.num_layers);
      layers_.emplace_back(loader, fmt::format("{}.layers.{}.", root, i), config);
    }
    loader.begin_back();
    if (own_.final_norm) norm_ = layer_norm(loader, root + ".final_layer_norm", config);
    if (projects()) project_out_ = {loader, root + ".project_out", config.hidden_size, own_.embedding_size};
    if (!uses_vocabulary_head(config)) return;
    head_ = {loader,
             config.tie_word_embeddings ? root + ".embed_tokens" : "lm_head",
             own_.embedding_size,
             config.vocab_size,
             /*bias=*/false,
             nn::WeightRole::kHead};
  }

  const ModelConfig& config() const override { return config_; }
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const override {
    std::vector<nn::KvLayerSpec> specs;
    for (const OptLayer& layer : layers_) specs.push_back(layer.attention.kv_layer(dtype));
    return specs;
  }

  // 3. The way through.

  void embed(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View tokens =
        projects() ? step.workspace.take(step.batch.num_tokens, own_.embedding_size) : states.residual;
    tokens_(step, step.batch.token_ids, tokens);
    if (projects()) project_in_(step, tokens, states.residual);
    positions_(step, step.batch.positions, states.delta);
    states.pending = true;
    step.workspace.rewind(mark);
  }

  void run_layers(const nn::StepContext& step, int32_t begin, int32_t end, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    nn::HiddenStates normed = states;
    normed.residual = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const OptLayer& layer = layers_[i];
      if (own_.norm_before) {
        layer.attention_norm(step, states, normed.residual);
        layer.attention(step, step.batch.layers[i], no_rotary_, normed.residual, states.delta);
        states.pending = true;
        layer.mlp_norm(step, states, normed.residual);
        layer.mlp(step, normed.residual, states.delta);
        states.pending = true;
      } else {
        states.add_delta(step);  // the positions
        layer.attention(step, step.batch.layers[i], no_rotary_, states.residual, states.delta);
        states.pending = true;
        layer.attention_norm(step, states, normed.residual);
        layer.mlp(step, normed.residual, normed.delta);
        normed.pending = true;
        layer.mlp_norm(step, normed, states.residual);
      }
    }
    step.workspace.rewind(mark);
  }

  ops::View finish(const nn::StepContext& step, nn::HiddenStates& states) const override {
    if (own_.final_norm) {
      const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
      norm_(step, states, normed);
      return normed;
    }
    states.add_delta(step);
    return states.residual;
  }

  void logits(const nn::StepContext& step, const ops::ConstView& hidden, const ops::View& out) const override {
    if (!projects()) return head_(step, hidden, out);
    const int64_t mark = step.workspace.mark();
    const ops::View projected = step.workspace.take(hidden.num_rows, own_.embedding_size);
    project_out_(step, hidden, projected);
    head_(step, projected, out);
    step.workspace.rewind(mark);
  }

 private:
  bool projects() const { return own_.embedding_size != config_.hidden_size; }

  ModelConfig config_;
  OptConfig own_;
  nn::Embedding tokens_;
  nn::Embedding positions_;
  nn::Linear project_in_;
  std::vector<OptLayer> layers_;
  nn::LayerNorm norm_;
  nn::Linear project_out_;
  nn::Linear head_;
  nn::Rotary no_rotary_;
};

}  // namespace

Result<std::unique_ptr<Model>> build_opt(const ModelConfig& config, int64_t /*num_positions*/, nn::Loader& loader) {
  if (!uses_vocabulary_head(config) && of_opt(config).embedding_size != config.hidden_size) {
    return unimplemented("config: word_embed_proj_dim is {}, hidden_size {}: vectors of projected states are not built",
                         of_opt(config).embedding_size, config.hidden_size);
  }
  std::vector<std::string_view> ignored;  // a head repeated beside tied embeddings
  if (config.tie_word_embeddings || !uses_vocabulary_head(config)) ignored.push_back("lm_head.weight");
  auto model = std::make_unique<Opt>(config, loader);
  QUIRE_RETURN_IF_ERROR(loader.finish(ignored));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace quire::models
