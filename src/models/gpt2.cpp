#include "models/gpt2.h"

#include <cmath>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/gguf_reader.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"
#include "nn/norm.h"

namespace quire::models {

// 1. The numbers.

namespace {

// kv_heads: of keys and values.
Status set_gpt2_heads(int64_t heads, int64_t kv_heads, ModelConfig& out) {
  if (out.hidden_size % heads != 0 || out.hidden_size / heads > kMostHeadDim) {
    return invalid_argument("config: n_embd={} over n_head={}: expected a multiple, of at most 1024 times as much",
                            out.hidden_size, heads);
  }
  out.architecture = "GPT2LMHeadModel";
  out.num_heads = static_cast<int32_t>(heads);
  out.num_kv_heads = static_cast<int32_t>(kv_heads);
  out.head_dim = static_cast<int32_t>(out.hidden_size / heads);
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  return {};
}

// What GPT-2 and GPTBigCode have in common.
Result<ModelConfig> read_gpt2_numbers(const boost::json::object& config, const boost::json::object& generation,
                                      bool one_key_head, std::string_view activation_default) {
  const ConfigReader reader(config);
  ModelConfig out;
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, reader.integer_or("vocab_size", 50257, 1, 1 << 24));
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("n_embd", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("n_layer", 1, 4096));
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("n_head", 1, 4096));
  QUIRE_RETURN_IF_ERROR(set_gpt2_heads(heads, one_key_head ? 1 : heads, out));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer_or("n_inner", 4 * out.hidden_size, 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(out.max_position, reader.integer_or("n_positions", 1024, 1, int64_t{1} << 30));
  QUIRE_ASSIGN_OR_RETURN(out.norm_eps, reader.number_or("layer_norm_epsilon", 1e-5));
  if (out.norm_eps < 0) return invalid_argument("config: layer_norm_epsilon is {}, expected at least 0", out.norm_eps);
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or("activation_function", activation_default));
  QUIRE_ASSIGN_OR_RETURN(out.activation, parse_activation(activation));
  QUIRE_ASSIGN_OR_RETURN(out.tie_word_embeddings, reader.boolean_or("tie_word_embeddings", true));
  QUIRE_ASSIGN_OR_RETURN(const bool scaled, reader.boolean_or("scale_attn_weights", true));
  QUIRE_ASSIGN_OR_RETURN(const bool cross_attention, reader.boolean_or("add_cross_attention", false));
  if (cross_attention) return unimplemented("config: add_cross_attention is true, supported: false");
  out.num_layers = static_cast<int32_t>(layers);
  if (!scaled) out.attention_scale = 1.0;
  QUIRE_RETURN_IF_ERROR(read_special_ids(config, generation, out));
  return out;
}

}  // namespace

Result<ModelConfig> read_gpt2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gpt2_numbers(config, generation, /*one_key_head=*/false, "gelu_new"));
  Gpt2Config own{.transposed_weights = true};
  QUIRE_ASSIGN_OR_RETURN(own.scale_by_inverse_layer,
                         ConfigReader(config).boolean_or("scale_attn_by_inverse_layer_idx", false));
  out.family = own;
  return out;
}

Result<ModelConfig> read_gpt_bigcode_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const bool one_key_head, ConfigReader(config).boolean_or("multi_query", true));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gpt2_numbers(config, generation, one_key_head, "gelu_pytorch_tanh"));
  out.architecture = "GPTBigCodeForCausalLM";
  out.grouped_qkv = true;
  out.family = Gpt2Config{};
  return out;
}

Result<ModelConfig> read_gpt_bigcode_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gpt2_gguf(checkpoint));
  out.architecture = "GPTBigCodeForCausalLM";
  return out;
}

Result<ModelConfig> read_gpt2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  ModelConfig out;
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, read_gguf_vocab_size(reader));
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("embedding_length", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("block_count", 1, 4096));
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("attention.head_count", 1, 4096));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kv_heads, reader.integer_or("attention.head_count_kv", heads, 1, heads));
  if (heads % kv_heads != 0) {
    return invalid_argument("metadata: \"{}\" {} is not a multiple of \"{}\" {}", reader.full("attention.head_count"),
                            heads, reader.full("attention.head_count_kv"), kv_heads);
  }
  QUIRE_RETURN_IF_ERROR(set_gpt2_heads(heads, kv_heads, out));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer("feed_forward_length", 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(out.max_position, reader.integer("context_length", 1, kMostContext));
  QUIRE_ASSIGN_OR_RETURN(out.norm_eps, reader.number("attention.layer_norm_epsilon"));
  if (out.norm_eps < 0) {
    return invalid_argument("metadata \"{}\" is {}, expected at least 0", reader.full("attention.layer_norm_epsilon"),
                            out.norm_eps);
  }
  out.num_layers = static_cast<int32_t>(layers);
  out.activation = Activation::kGeluTanh;
  out.tie_word_embeddings = !reader.has_tensor("lm_head.weight");
  out.family = Gpt2Config{.transposed_weights = false};  // converters turn them
  QUIRE_RETURN_IF_ERROR(read_gguf_special_ids(reader, out));
  return out;
}

namespace {

// 2. The parameters.

nn::AttentionConfig gpt2_attention(const ModelConfig& config, int32_t layer) {
  const double scale =
      config.attention_scale / (std::get<Gpt2Config>(config.family).scale_by_inverse_layer ? layer + 1 : 1);
  return {.hidden_size = config.hidden_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = static_cast<float>(scale),
          .grouped_rows = config.grouped_qkv};
}

struct Gpt2Layer {
  nn::LayerNorm attention_norm;
  nn::Attention attention;
  nn::LayerNorm mlp_norm;
  nn::PlainMlp mlp;

  Gpt2Layer(nn::Loader& loader, const std::string& prefix, const ModelConfig& config, int32_t index)
      : attention_norm(loader, prefix + "ln_1", config.hidden_size, config.norm_eps),
        attention(loader, prefix + "attn", gpt2_attention(config, index),
                  {projection(config, prefix + "attn.c_attn",
                              config.hidden_size + 2 * int64_t{config.num_kv_heads} * config.head_dim)},
                  projection(config, prefix + "attn.c_proj", config.hidden_size)),
        mlp_norm(loader, prefix + "ln_2", config.hidden_size, config.norm_eps),
        mlp(loader, projection(config, prefix + "mlp.c_fc", config.intermediate_size),
            projection(config, prefix + "mlp.c_proj", config.hidden_size), config.activation) {}

  static nn::Linear::Part projection(const ModelConfig& config, std::string name, int64_t rows) {
    return {.prefix = std::move(name),
            .rows = rows,
            .bias = true,
            .transposed = std::get<Gpt2Config>(config.family).transposed_weights};
  }
};

class Gpt2 final : public Model {
 public:
  Gpt2(const ModelConfig& config, nn::Loader& loader) : config_(config) {
    // The first release's files leave out the name of the whole.
    const std::string root = loader.has("wte.weight") ? "" : "transformer.";
    loader.begin_front();
    tokens_ = nn::Embedding::of_tokens(loader, root + "wte.weight", config.vocab_size, config.hidden_size);
    positions_ = {loader, root + "wpe.weight", config.max_position, config.hidden_size};
    for (int32_t i = 0; i < config.num_layers; ++i) {
      loader.begin_layer(i, config.num_layers);
      layers_.emplace_back(loader, fmt::format("{}h.{}.", root, i), config, i);
    }
    loader.begin_back();
    norm_ = {loader, root + "ln_f", config.hidden_size, config.norm_eps};
    if (uses_vocabulary_head(config)) {
      head_ = {loader,
               config.tie_word_embeddings ? root + "wte" : "lm_head",
               config.hidden_size,
               config.vocab_size,
               /*bias=*/false,
               nn::WeightRole::kHead};
    } else if (config.pooling.num_labels > 0) {
      head_ = {loader, "score", config.hidden_size, config.pooling.num_labels, /*bias=*/false};
      head_.keep_inputs_precise();
    }
  }

  const ModelConfig& config() const override { return config_; }
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const override {
    std::vector<nn::KvLayerSpec> specs;
    for (const Gpt2Layer& layer : layers_) specs.push_back(layer.attention.kv_layer(dtype));
    return specs;
  }

  // 3. The way through.

  void embed(const nn::StepContext& step, nn::HiddenStates& states) const override {
    tokens_(step, step.batch.token_ids, states.residual);
    positions_(step, step.batch.positions, states.delta);
    states.pending = true;
  }

  void run_layers(const nn::StepContext& step, int32_t begin, int32_t end, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Gpt2Layer& layer = layers_[i];
      layer.attention_norm(step, states, normed);
      layer.attention(step, step.batch.layers[i], no_rotary_, normed, states.delta);
      states.pending = true;
      layer.mlp_norm(step, states, normed);
      layer.mlp(step, normed, states.delta);
      states.pending = true;
    }
    step.workspace.rewind(mark);
  }

  ops::View finish(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    norm_(step, states, normed);
    return normed;
  }

  void logits(const nn::StepContext& step, const ops::ConstView& hidden, const ops::View& out) const override {
    head_(step, hidden, out);
  }
  void scores(const nn::StepContext& step, const ops::View& pooled, const ops::View& out) const override {
    head_(step, pooled, out);
  }

 private:
  ModelConfig config_;
  nn::Embedding tokens_;
  nn::Embedding positions_;
  std::vector<Gpt2Layer> layers_;
  nn::LayerNorm norm_;
  nn::Linear head_;  // over the vocabulary, or over the labels
  nn::Rotary no_rotary_;
};

}  // namespace

Result<std::unique_ptr<Model>> build_gpt2(const ModelConfig& config, int64_t /*num_positions*/, nn::Loader& loader) {
  // Causal masks, which older exporters wrote beside the parameters; a head repeated beside tied embeddings.
  std::vector<std::string_view> ignored = {".attn.bias", ".attn.masked_bias"};
  if (config.tie_word_embeddings || !uses_vocabulary_head(config)) ignored.push_back("lm_head.weight");
  auto model = std::make_unique<Gpt2>(config, loader);
  QUIRE_RETURN_IF_ERROR(loader.finish(ignored));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace quire::models
