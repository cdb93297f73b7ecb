#include "models/bert.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "checkpoint/text_quote.h"
#include "models/config_reader.h"
#include "models/gguf_reader.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"
#include "nn/norm.h"

namespace quire::models {

// 1. The numbers.

namespace {

// Heads of head_dim, or where that is 0 of a share of the hidden size each.
Status set_heads(int64_t heads, ModelConfig& out) {
  if (out.head_dim == 0) {
    if (out.hidden_size % heads != 0 || out.hidden_size / heads > kMostHeadDim) {
      return invalid_argument(
          "config: {} hidden numbers over {} heads: expected a multiple, of at most 1024 times as much",
          out.hidden_size, heads);
    }
    out.head_dim = static_cast<int32_t>(out.hidden_size / heads);
  }
  out.num_heads = out.num_kv_heads = static_cast<int32_t>(heads);
  out.attention_scale = 1.0 / std::sqrt(static_cast<double>(out.head_dim));
  out.attends_both_ways = true;
  return {};
}

Result<ModelConfig> read_encoder_config(const boost::json::object& config, const char* architecture,
                                        int64_t num_types) {
  const ConfigReader reader(config);
  ModelConfig out;
  out.architecture = architecture;
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, reader.integer("vocab_size", 1, 1 << 24));
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("hidden_size", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer("intermediate_size", 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("num_hidden_layers", 1, 4096));
  out.num_layers = static_cast<int32_t>(layers);
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("num_attention_heads", 1, 4096));
  QUIRE_RETURN_IF_ERROR(set_heads(heads, out));
  QUIRE_ASSIGN_OR_RETURN(out.max_position, reader.integer_or("max_position_embeddings", 512, 1, kMostContext));
  QUIRE_ASSIGN_OR_RETURN(out.norm_eps, reader.number_or("layer_norm_eps", 1e-12));
  if (out.norm_eps < 0) return invalid_argument("config: layer_norm_eps is {}, expected at least 0", out.norm_eps);
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or("hidden_act", "gelu"));
  QUIRE_ASSIGN_OR_RETURN(out.activation, parse_activation(activation));
  QUIRE_ASSIGN_OR_RETURN(out.num_text_types, reader.integer_or("type_vocab_size", num_types, 0, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const std::string positions, reader.text_or("position_embedding_type", "absolute"));
  if (positions != "absolute") {
    return unimplemented("config: position_embedding_type is {}, supported: \"absolute\"",
                         checkpoint::in_quotes(positions));
  }
  for (const char* key : {"is_decoder", "add_cross_attention"}) {
    QUIRE_ASSIGN_OR_RETURN(const bool decodes, reader.boolean_or(key, false));
    if (decodes) return unimplemented("config: {} is true, supported: false", key);
  }
  out.attention_bias = out.attention_output_bias = out.mlp_bias = true;
  return out;
}

}  // namespace

Result<ModelConfig> read_bert_config(const boost::json::object& config, const boost::json::object& /*generation*/) {
  return read_encoder_config(config, "BertModel", 2);
}

Result<ModelConfig> read_roberta_config(const boost::json::object& config, const boost::json::object& /*generation*/) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_encoder_config(config, "RobertaModel", 2));
  // Positions begin behind that of the padding token.
  QUIRE_ASSIGN_OR_RETURN(const int64_t padding, ConfigReader(config).integer_or("pad_token_id", 1, 0, 1 << 24));
  out.position_offset = padding + 1;
  if (out.max_position <= out.position_offset) {
    return invalid_argument("config: max_position_embeddings is {}, of which {} (pad_token_id + 1) are no text's",
                            out.max_position, out.position_offset);
  }
  out.max_position -= out.position_offset;
  return out;
}

Result<ModelConfig> read_nomic_bert_config(const boost::json::object& config,
                                           const boost::json::object& /*generation*/) {
  const ConfigReader reader(config);
  ModelConfig out;
  out.architecture = "NomicBertModel";
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, reader.integer("vocab_size", 1, 1 << 24));
  // The first release's keys, or those of transformers.
  const bool is_first = reader.has("n_embd");
  const auto key = [&](const char* first, const char* later) { return is_first ? first : later; };
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer(key("n_embd", "hidden_size"), 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size,
                         reader.integer_or(key("n_inner", "intermediate_size"), 4 * out.hidden_size, 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer(key("n_layer", "num_hidden_layers"), 1, 4096));
  out.num_layers = static_cast<int32_t>(layers);
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer(key("n_head", "num_attention_heads"), 1, 4096));
  out.head_dim = 0;
  if (!is_first && reader.has("head_dim")) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t head_dim, reader.integer("head_dim", 1, kMostHeadDim));
    out.head_dim = static_cast<int32_t>(head_dim);
  }
  QUIRE_RETURN_IF_ERROR(set_heads(heads, out));
  QUIRE_ASSIGN_OR_RETURN(out.max_position,
                         reader.integer_or(key("n_positions", "max_position_embeddings"), 2048, 1, kMostContext));
  QUIRE_ASSIGN_OR_RETURN(out.norm_eps, reader.number_or(key("layer_norm_epsilon", "layer_norm_eps"), 1e-12));
  if (out.norm_eps < 0) return invalid_argument("config: the epsilon of layer norms is {}", out.norm_eps);
  QUIRE_ASSIGN_OR_RETURN(out.num_text_types, reader.integer_or("type_vocab_size", 2, 0, 1 << 16));
  const char* usual = key("swiglu", "silu");
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or(key("activation_function", "hidden_act"), usual));
  if (activation != usual) {
    return unimplemented("config: the activation is {}, supported: \"{}\"", checkpoint::in_quotes(activation), usual);
  }
  if (!is_first) {
    ConfigDefaults defaults;
    defaults.rope_theta = 1000.0;
    QUIRE_ASSIGN_OR_RETURN(out.rope, read_rope(config, out, defaults));
    return out;
  }
  struct Fixed {
    const char* key;
    bool fallback, supported;
  };
  for (const Fixed& one :
       {Fixed{"prenorm", false, false}, Fixed{"use_rms_norm", false, false}, Fixed{"causal", false, false}}) {
    QUIRE_ASSIGN_OR_RETURN(const bool value, reader.boolean_or(one.key, one.fallback));
    if (value != one.supported) return unimplemented("config: {} is {}, supported: {}", one.key, value, one.supported);
  }
  if (reader.has("rotary_scaling_factor")) {
    // Longer texts than it was trained on turn every key anew with their length; up to there nothing is scaled.
    QUIRE_ASSIGN_OR_RETURN(const int64_t trained, reader.integer_or("max_trained_positions", 2048, 1, kMostContext));
    out.max_position = std::min(out.max_position, trained);
  }
  QUIRE_ASSIGN_OR_RETURN(const double share, reader.number_or("rotary_emb_fraction", 1.0));
  if (!(share > 0 && share <= 1)) {
    return unimplemented("config: rotary_emb_fraction is {}, supported: above 0, up to 1", share);
  }
  QUIRE_ASSIGN_OR_RETURN(out.rope.theta, reader.number_or("rotary_emb_base", 10000.0));
  QUIRE_ASSIGN_OR_RETURN(out.rope.interleaved, reader.boolean_or("rotary_emb_interleaved", false));
  out.rope.rotary_dim = static_cast<int32_t>(share * out.head_dim);
  QUIRE_RETURN_IF_ERROR(nn::validate(out.rope, out.head_dim).with_prefix("config: "));
  QUIRE_ASSIGN_OR_RETURN(out.attention_bias, reader.boolean_or("qkv_proj_bias", true));
  out.attention_output_bias = out.attention_bias;
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_fc1_bias", true));
  QUIRE_ASSIGN_OR_RETURN(const bool down_bias, reader.boolean_or("mlp_fc2_bias", true));
  if (down_bias != out.mlp_bias) {
    return unimplemented("config: mlp_fc1_bias is {} and mlp_fc2_bias {}, supported: both alike", out.mlp_bias,
                         down_bias);
  }
  return out;
}

Result<ModelConfig> read_bert_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  ModelConfig out;
  const bool rotates = reader.architecture() == "nomic-bert";
  out.architecture = rotates ? "NomicBertModel" : "BertModel";
  QUIRE_ASSIGN_OR_RETURN(out.vocab_size, read_gguf_vocab_size(reader));
  QUIRE_ASSIGN_OR_RETURN(out.hidden_size, reader.integer("embedding_length", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t layers, reader.integer("block_count", 1, 4096));
  out.num_layers = static_cast<int32_t>(layers);
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("attention.head_count", 1, 4096));
  QUIRE_RETURN_IF_ERROR(set_heads(heads, out));
  QUIRE_ASSIGN_OR_RETURN(out.intermediate_size, reader.integer("feed_forward_length", 1, 1 << 22));
  QUIRE_ASSIGN_OR_RETURN(out.max_position, reader.integer("context_length", 1, kMostContext));
  QUIRE_ASSIGN_OR_RETURN(out.norm_eps, reader.number("attention.layer_norm_epsilon"));
  QUIRE_ASSIGN_OR_RETURN(const bool causal, reader.boolean_or("attention.causal", false));
  if (causal) return unimplemented("metadata \"{}\" is true, supported: false", reader.full("attention.causal"));
  const checkpoint::CheckpointTensor* types = checkpoint.find("embeddings.token_type_embeddings.weight");
  out.num_text_types = types == nullptr ? 0 : types->view.shape[0];
  out.activation = Activation::kGelu;
  out.attention_bias = out.attention_output_bias =
      reader.has_tensor_that_ends_with(rotates ? ".attn.out_proj.bias" : ".attention.output.dense.bias");
  out.mlp_bias = reader.has_tensor_that_ends_with(rotates ? ".mlp.fc2.bias" : ".output.dense.bias");
  if (!rotates) return out;
  QUIRE_ASSIGN_OR_RETURN(out.rope.theta, reader.number_or("rope.freq_base", 10000.0));
  out.rope.rotary_dim = out.head_dim;
  QUIRE_RETURN_IF_ERROR(nn::validate(out.rope, out.head_dim).with_prefix("metadata: "));
  return out;
}

namespace {

// 2. The parameters.

// What families call them; "{}" is the layer.
struct EncoderNames {
  const char* embedding_norm;
  const char* layer;
  std::vector<const char*> qkv;  // one of all, or three
  const char* attention_output;
  const char* attention_norm;
  const char* up;
  const char* gate;  // nullptr: the feed-forward block has none
  const char* down;
  const char* mlp_norm;
};

const EncoderNames& bert_names() {
  static const EncoderNames kNames{"embeddings.LayerNorm",
                                   "encoder.layer.{}.",
                                   {"attention.self.query", "attention.self.key", "attention.self.value"},
                                   "attention.output.dense",
                                   "attention.output.LayerNorm",
                                   "intermediate.dense",
                                   nullptr,
                                   "output.dense",
                                   "output.LayerNorm"};
  return kNames;
}
const EncoderNames& nomic_names() {
  static const EncoderNames kNames{"emb_ln",   "encoder.layers.{}.", {"attn.Wqkv"}, "attn.out_proj", "norm1",
                                   "mlp.fc11", "mlp.fc12",           "mlp.fc2",     "norm2"};
  return kNames;
}

nn::AttentionConfig encoder_attention(const ModelConfig& config) {
  return {.hidden_size = config.hidden_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .scale = static_cast<float>(config.attention_scale),
          .both_ways = true};
}

std::vector<nn::Linear::Part> qkv_parts(const EncoderNames& names, const std::string& prefix,
                                        const ModelConfig& config) {
  const int64_t rows = 3 * int64_t{config.num_heads} * config.head_dim / static_cast<int64_t>(names.qkv.size());
  std::vector<nn::Linear::Part> parts;
  for (const char* name : names.qkv) parts.push_back({prefix + name, rows, config.attention_bias});
  return parts;
}

std::unique_ptr<nn::FeedForward> feed_forward(nn::Loader& loader, const EncoderNames& names, const std::string& prefix,
                                              const ModelConfig& config) {
  const nn::Linear::Part up{prefix + names.up, config.intermediate_size, config.mlp_bias};
  const nn::Linear::Part down{prefix + names.down, config.hidden_size, config.mlp_bias};
  if (names.gate == nullptr) return std::make_unique<nn::PlainMlp>(loader, up, down, config.activation);
  return std::make_unique<nn::GatedMlp>(
      loader,
      nn::GatedMlp::Parts{.gate_up = {{prefix + names.gate, config.intermediate_size, config.mlp_bias}, up},
                          .down = down},
      Activation::kSilu);
}

struct EncoderLayer {
  nn::Attention attention;
  nn::LayerNorm attention_norm;
  std::unique_ptr<nn::FeedForward> mlp;
  nn::LayerNorm mlp_norm;

  EncoderLayer(nn::Loader& loader, const EncoderNames& names, const std::string& prefix, const ModelConfig& config)
      : attention(loader, prefix, encoder_attention(config), qkv_parts(names, prefix, config),
                  {prefix + names.attention_output, config.hidden_size, config.attention_output_bias}),
        attention_norm(loader, prefix + names.attention_norm, config.hidden_size, config.norm_eps),
        mlp(feed_forward(loader, names, prefix, config)),
        mlp_norm(loader, prefix + names.mlp_norm, config.hidden_size, config.norm_eps) {}
};

struct EncoderShape {
  const EncoderNames& names;
  std::vector<const char*> roots;  // which checkpoints with a head put before the names
  bool has_positions = true;       // a table of them
  // Of a classifying head: a layer and tanh, then the labels.
  const char* head_dense;
  const char* head_labels;
};

class Encoder final : public Model {
 public:
  Encoder(const EncoderShape& shape, const ModelConfig& config, int64_t num_positions, nn::Loader& loader)
      : config_(config) {
    std::string root;
    for (const char* one : shape.roots) {
      if (loader.has(std::string(one) + "embeddings.word_embeddings.weight")) root = one;
    }
    const std::string tables = root + "embeddings.";
    tokens_ =
        nn::Embedding::of_tokens(loader, tables + "word_embeddings.weight", config.vocab_size, config.hidden_size);
    if (shape.has_positions) {
      positions_.emplace(loader, tables + "position_embeddings.weight", config.max_position + config.position_offset,
                         config.hidden_size, config.position_offset);
    }
    if (config.num_text_types > 0) {
      types_.emplace(loader, tables + "token_type_embeddings.weight", config.num_text_types, config.hidden_size);
    }
    norm_ = {loader, root + shape.names.embedding_norm, config.hidden_size, config.norm_eps};
    for (int32_t i = 0; i < config.num_layers; ++i) {
      const std::string prefix = root + fmt::format(fmt::runtime(shape.names.layer), i);
      layers_.emplace_back(loader, shape.names, prefix, config);
      // A configuration may name any number of layers: the first that is not there is enough for the error.
      const std::string norm = prefix + shape.names.attention_norm;
      if (!loader.has(norm + ".weight") && !loader.has(norm + ".gamma")) break;
    }
    if (config.task == ModelTask::kClassify) {
      const std::string dense =
          std::string(shape.head_dense).starts_with("pooler") ? root + shape.head_dense : shape.head_dense;
      constexpr auto kExact = nn::WeightRole::kExact;
      head_ = {loader, dense, config.hidden_size, config.hidden_size, /*bias=*/true, kExact};
      labels_ = {loader, shape.head_labels, config.hidden_size, config.pooling.num_labels, /*bias=*/true, kExact};
    }
    if (config.rope.rotary_dim > 0) rotary_ = {loader, config.rope, num_positions, {}};
  }

  const ModelConfig& config() const override { return config_; }
  // All layers' in turn.
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const override {
    return {layers_.front().attention.kv_layer(dtype)};
  }

  // 3. The way through.

  void embed(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    nn::HiddenStates raw = states;
    raw.residual = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    tokens_(step, step.batch.token_ids, raw.residual);
    if (positions_) {
      (*positions_)(step, step.batch.positions, raw.delta);
      raw.pending = true;
    }
    if (types_) {
      raw.add_delta(step);
      (*types_)(step, step.batch.text_types, raw.delta);
      raw.pending = true;
    }
    norm_(step, raw, states.residual);
    step.workspace.rewind(mark);
  }

  void run_layers(const nn::StepContext& step, int32_t begin, int32_t end, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    nn::HiddenStates inner = states;
    inner.residual = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const EncoderLayer& layer = layers_[i];
      layer.attention(step, step.batch.layers.front(), rotary_, states.residual, states.delta);
      states.pending = true;
      layer.attention_norm(step, states, inner.residual);
      (*layer.mlp)(step, inner.residual, inner.delta);
      inner.pending = true;
      layer.mlp_norm(step, inner, states.residual);
    }
    step.workspace.rewind(mark);
  }

  ops::View finish(const nn::StepContext& /*step*/, nn::HiddenStates& states) const override { return states.residual; }

  void scores(const nn::StepContext& step, const ops::View& pooled, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View inner = step.workspace.take(pooled.num_rows, config_.hidden_size);
    head_(step, pooled, inner);
    step(ops::ScaleArgs{.values = inner.floats(),  // tanh
                        .scale = 1,
                        .soft_cap = 1,
                        .num_rows = inner.num_rows,
                        .size = inner.num_columns});
    labels_(step, inner, out);
    step.workspace.rewind(mark);
  }

 private:
  ModelConfig config_;
  nn::Embedding tokens_;
  std::optional<nn::Embedding> positions_;
  std::optional<nn::Embedding> types_;
  nn::LayerNorm norm_;
  std::vector<EncoderLayer> layers_;
  nn::Linear head_;
  nn::Linear labels_;
  nn::Rotary rotary_;
};

Result<std::unique_ptr<Model>> build(const EncoderShape& shape, const ModelConfig& config, int64_t num_positions,
                                     nn::Loader& loader) {
  auto model = std::make_unique<Encoder>(shape, config, num_positions, loader);
  // Buffers of older exporters; what the embeddings do without: BERT's pooler and the heads over the vocabulary.
  const std::vector<std::string_view> ignored = {"embeddings.position_ids"};
  std::vector<std::string_view> others = {"cls.", "lm_head."};
  if (config.task != ModelTask::kClassify) {
    others.insert(others.end(), {"pooler.", "bert.pooler.", "roberta.pooler.", "nomic_bert.pooler.", "classifier."});
  }
  QUIRE_RETURN_IF_ERROR(loader.finish(ignored, others));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<Model>> build_bert(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build({.names = bert_names(), .roots = {"bert."}, .head_dense = "pooler.dense", .head_labels = "classifier"},
               config, num_positions, loader);
}

Result<std::unique_ptr<Model>> build_roberta(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build({.names = bert_names(),
                .roots = {"roberta."},
                .head_dense = "classifier.dense",
                .head_labels = "classifier.out_proj"},
               config, num_positions, loader);
}

Result<std::unique_ptr<Model>> build_nomic_bert(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build({.names = nomic_names(),
                .roots = {"bert.", "nomic_bert."},
                .has_positions = false,
                .head_dense = "pooler.dense",
                .head_labels = "classifier"},
               config, num_positions, loader);
}

}  // namespace quire::models
