#include "models/llama.h"

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "nn/rotary.h"

namespace quire::models {

// 1. The numbers.

Result<ModelConfig> read_llama_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  ModelConfig out;
  out.architecture = "LlamaForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, reader.integer("vocab_size", 1, 1 << 24));
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("hidden_size", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer("intermediate_size", 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("num_hidden_layers", 1, 4096));
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("num_attention_heads", 1, 4096));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kv_heads, reader.integer_or("num_key_value_heads", heads, 1, heads));
  QUIRE_ASSIGN_OR_RETURN(const int64_t head_dim, reader.integer_or("head_dim", out.hidden_size / heads, 2, 1024));
  if (head_dim % 2 != 0) return invalid_argument("config: head_dim is {}, expected an even number", head_dim);
  if (heads % kv_heads != 0) {
    return invalid_argument("config: num_attention_heads={} is not a multiple of num_key_value_heads={}", heads,
                            kv_heads);
  }
  out.num_layers = static_cast<int32_t>(layers);
  out.num_heads = static_cast<int32_t>(heads);
  out.num_kv_heads = static_cast<int32_t>(kv_heads);
  out.head_dim = static_cast<int32_t>(head_dim);
  QUIRE_ASSIGN_OR_RETURN(out.max_position, reader.integer_or("max_position_embeddings", 2048, 1, int64_t{1} << 30));
  QUIRE_ASSIGN_OR_RETURN(out.rms_norm_eps, reader.number_or("rms_norm_eps", 1e-6));
  if (out.rms_norm_eps < 0)
    return invalid_argument("config: rms_norm_eps is {}, expected at least 0", out.rms_norm_eps);
  QUIRE_ASSIGN_OR_RETURN(out.attention_bias, reader.boolean_or("attention_bias", false));
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  QUIRE_ASSIGN_OR_RETURN(out.tie_word_embeddings, reader.boolean_or("tie_word_embeddings", false));
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") {
    return unimplemented("config: hidden_act \"{}\" is not supported for this architecture yet; supported: silu",
                         activation);
  }
  QUIRE_ASSIGN_OR_RETURN(out.rope, read_rope(config, out.max_position));
  QUIRE_ASSIGN_OR_RETURN(const double rotary_share, reader.number_or("partial_rotary_factor", 1.0));
  if (!(rotary_share > 0 && rotary_share <= 1)) {
    return invalid_argument("config: partial_rotary_factor is {}, expected more than 0 and at most 1", rotary_share);
  }
  out.rope.rotary_dim = static_cast<int32_t>(std::floor(out.head_dim * rotary_share));
  QUIRE_RETURN_IF_ERROR(nn::validate(out.rope, out.head_dim).with_prefix("config: "));
  QUIRE_RETURN_IF_ERROR(read_special_ids(config, generation, out));
  return out;
}

namespace {

// 2. The parameters.

nn::AttentionConfig attention_config(const ModelConfig& config, int32_t window = 0) {
  return {.hidden_size = config.hidden_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .bias = config.attention_bias,
          .output_bias = config.attention_bias,
          .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
          .window = window};
}

struct Layer {
  nn::RmsNorm attention_norm;
  nn::Attention attention;
  nn::RmsNorm mlp_norm;
  nn::GatedMlp mlp;

  Layer(nn::Loader& loader, const ModelConfig& config, int index) {
    const std::string prefix = fmt::format("model.layers.{}", index);
    attention_norm = {loader, prefix + ".input_layernorm", config.hidden_size, config.rms_norm_eps};
    const int32_t window = config.layer_windows.empty() ? 0 : config.layer_windows[static_cast<size_t>(index)];
    attention = {loader, prefix + ".self_attn", attention_config(config, window)};
    mlp_norm = {loader, prefix + ".post_attention_layernorm", config.hidden_size, config.rms_norm_eps};
    mlp = {loader, prefix + ".mlp", config.hidden_size, config.intermediate_size, config.mlp_bias};
  }
};

class Llama final : public Model {
 public:
  Llama(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) : config_(config) {
    embedding_ = {loader, "model.embed_tokens.weight", config.vocab_size, config.hidden_size};
    for (int i = 0; i < config.num_layers; ++i) layers_.emplace_back(loader, config, i);
    norm_ = {loader, "model.norm", config.hidden_size, config.rms_norm_eps};
    head_ = {loader, config.tie_word_embeddings ? "model.embed_tokens" : "lm_head", config.hidden_size,
             config.vocab_size};
    // Llama 3.1 and later in GGUF: the scaling of the frequencies, worked out by the converter.
    const std::vector<float> divisors =
        loader.vector("model.rope_freqs.weight", config.rope.rotary_dim / 2, /*optional=*/true);
    loader.count(nn::Rotary::table_bytes(config.rope, num_positions));
    if (!loader.planning()) rotary_ = {config.rope, num_positions, divisors};
  }

  const ModelConfig& config() const override { return config_; }

  // 3. The way through.

  int64_t workspace_floats(int64_t num_tokens) const override {
    const int64_t row = nn::Workspace::rounded(num_tokens * config_.hidden_size);
    return 3 * row + std::max(nn::Attention::workspace_floats(attention_config(config_), num_tokens),
                              nn::GatedMlp::workspace_floats(config_.intermediate_size, num_tokens));
  }

  float* forward(ops::Backend& backend, const nn::Batch& batch, nn::Workspace& workspace) const override {
    const int64_t n = batch.num_tokens;
    float* hidden = workspace.take(n * config_.hidden_size);  // the residual stream
    float* normed = workspace.take(n * config_.hidden_size);
    float* delta = workspace.take(n * config_.hidden_size);  // what a block adds to the stream
    embedding_(backend, batch.token_ids, n, hidden);
    const float* last_delta = nullptr;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      layer.attention_norm(backend, hidden, last_delta, n, normed);
      layer.attention(backend, batch, batch.layers[i], rotary_, normed, delta, workspace);
      layer.mlp_norm(backend, hidden, delta, n, normed);
      layer.mlp(backend, normed, n, delta, workspace);
      last_delta = delta;
    }
    norm_(backend, hidden, last_delta, n, normed);
    return normed;
  }

  void logits(ops::Backend& backend, const float* hidden, int64_t num_rows, float* out) const override {
    head_(backend, hidden, num_rows, out);
  }

 private:
  ModelConfig config_;
  nn::Embedding embedding_;
  std::vector<Layer> layers_;
  nn::RmsNorm norm_;
  nn::Linear head_;
  nn::Rotary rotary_;
};

}  // namespace

Result<std::unique_ptr<Model>> build_llama(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  // Buffers that older exporters wrote beside the parameters; a head repeated beside tied
  // embeddings.
  std::vector<std::string_view> ignored = {".rotary_emb.inv_freq"};
  if (config.tie_word_embeddings) ignored.push_back("lm_head.weight");
  auto model = std::make_unique<Llama>(config, num_positions, loader);
  QUIRE_RETURN_IF_ERROR(loader.finish(ignored));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace quire::models
