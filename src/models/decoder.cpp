#include "models/decoder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "models/decoder_layer.h"
#include "nn/embedding.h"

namespace quire::models {

nn::AttentionConfig attention_config(const DecoderShape& shape, const ModelConfig& config, int32_t layer) {
  return {.hidden_size = config.hidden_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .bias = config.attention_bias,
          .output_bias = config.attention_output_bias,
          .qk_norm = shape.qk_norm,
          .norm_eps = config.norm_eps,
          .norm_weight_offset = config.norm_weight_offset,
          .scale = static_cast<float>(config.attention_scale),
          .soft_cap = static_cast<float>(config.attention_soft_cap),
          .qkv_limit = static_cast<float>(config.qkv_limit),
          .window = config.layer_windows.empty() ? 0 : config.layer_windows[static_cast<size_t>(layer)],
          .both_ways = config.attends_both_ways,
          .sinks = shape.sinks,
          .output_gate = shape.attention_gate != nullptr,
          .gate_name = shape.attention_gate,
          .grouped_rows = config.grouped_qkv,
          .query_norm_name = shape.query_norm,
          .key_norm_name = shape.key_norm,
          .output_name = shape.attention_output};
}

namespace {

// Where there is no head some exporters leave out the name of the whole.
std::string root_of(const DecoderShape& shape, const nn::Loader& loader) {
  const std::string embeddings = std::string(shape.embeddings) + ".weight";
  const bool bare = !loader.has(std::string(shape.root) + "." + embeddings) && loader.has(embeddings);
  return bare ? "" : std::string(shape.root) + ".";
}

class Decoder final : public Model {
 public:
  Decoder(const DecoderShape& shape, const ModelConfig& config, int64_t num_positions, nn::Loader& loader)
      : config_(config) {
    const std::string root = root_of(shape, loader);
    loader.begin_front();
    const std::string embeddings = root + std::string(shape.embeddings);
    embedding_ = nn::Embedding::of_tokens(loader, embeddings + ".weight", config.vocab_size, config.hidden_size);
    if (shape.layer_inputs != nullptr) layer_inputs_ = shape.layer_inputs(loader, root, config);
    std::vector<std::optional<nn::Range>> kv_heads;  // of each layer, of this rank
    for (int32_t i = 0; i < config.num_layers; ++i) {
      loader.begin_layer(i, config.num_layers);
      const std::string prefix = fmt::format("{}{}.{}.", root, shape.layers, i);
      DecoderShape own = shape;
      if (shape.of_layer != nullptr) shape.of_layer(config, i, own);
      add_layer({loader, own, prefix, config, i}, shape.caches);
      kv_heads.push_back(loader.kv_heads());
      if (!shape.caches.empty())
        check_cache(loader, kv_heads, static_cast<size_t>(shape.caches[static_cast<size_t>(i)]));
      if (shape.layer_end != nullptr) ends_.push_back(shape.layer_end(loader, prefix, config, i));
      // A configuration may name any number of layers, of any number of experts: the first that the checkpoint does not
      // have is enough for the error.
      if (!loader.has_weight(fmt::format("{}{}.weight", prefix, first_module(own)))) break;
    }
    loader.begin_back();
    norm_ = {shape.norm,         loader,          root + std::string(shape.after_layers),
             config.hidden_size, config.norm_eps, config.norm_weight_offset};
    if (uses_vocabulary_head(config)) {
      head_ = {loader,
               config.tie_word_embeddings ? embeddings : std::string(shape.head),
               config.hidden_size,
               config.vocab_size,
               shape.head_bias,
               nn::WeightRole::kHead};
    } else if (config.pooling.num_labels > 0) {
      head_ = {loader, "score", config.hidden_size, config.pooling.num_labels, loader.has("score.bias")};
      head_.keep_inputs_precise();
    }
    loader.begin_common();
    make_rotary(root, num_positions, loader);
  }

  const ModelConfig& config() const override { return config_; }
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const override {
    std::vector<nn::KvLayerSpec> specs;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (caches_[i] != specs.size()) continue;
      const std::vector<nn::KvLayerSpec> own = layers_[i].kv_layers(dtype);
      specs.insert(specs.end(), own.begin(), own.end());
    }
    return specs;
  }
  std::optional<nn::Range> caches_of(const nn::Range& layers) const override {
    const auto first_of = [this](int64_t layer) {
      const auto i = static_cast<size_t>(layer);
      return static_cast<int64_t>(i < caches_.size() ? caches_[i] : num_caches_);
    };
    if (shares_caches_) return std::nullopt;
    return nn::Range{first_of(layers.first), first_of(layers.end()) - first_of(layers.first)};
  }

  void embed(const nn::StepContext& step, nn::HiddenStates& states) const override {
    embedding_(step, step.batch.token_ids, states.residual);
    scale(step, states.residual, config_.embedding_scale, /*soft_cap=*/0);
    if (layer_inputs_ != nullptr) layer_inputs_->make(step, states);
  }

  void run_layers(const nn::StepContext& step, int32_t begin, int32_t end, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      layers_[i].run(step, step.batch.layers.subspan(caches_[i], layers_[i].num_caches()), states, normed);
      if (!ends_.empty()) (*ends_[i])(step, states);
    }
    step.workspace.rewind(mark);
  }

  ops::View finish(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    return enter_block(step, norm_, states, normed, static_cast<float>(config_.residual_scale));
  }

  void logits(const nn::StepContext& step, const ops::ConstView& hidden, const ops::View& out) const override {
    head_(step, hidden, out);
    scale(step, out, config_.logits_scale, config_.logits_soft_cap);
  }

  void scores(const nn::StepContext& step, const ops::View& pooled, const ops::View& out) const override {
    head_(step, pooled, out);
  }

 private:
  // A norm, where those have parameters.
  static std::string_view first_module(const DecoderShape& shape) {
    if (shape.norm == nn::NormKind::kLayerWithoutParameters) return "self_attn.o_proj";
    if (!shape.has_attention) return shape.before_mlp;
    return shape.before_attention.empty() ? shape.after_attention : shape.before_attention;
  }

  // `caches`: as the shape has them.
  void add_layer(DecoderLayer layer, const std::vector<int32_t>& caches) {
    const size_t index = layers_.size();
    const auto source = caches.empty() ? index : static_cast<size_t>(caches[index]);
    layers_.push_back(std::move(layer));
    caches_.push_back(source == index ? num_caches_ : caches_[source]);
    if (source == index) num_caches_ += layers_.back().num_caches();
    shares_caches_ = shares_caches_ || source != index;
  }

  // That the last layer so far, which reads the cache of `source`, has the same heads of it on this rank of several.
  static void check_cache(nn::Loader& loader, const std::vector<std::optional<nn::Range>>& kv_heads, size_t source) {
    if (kv_heads.back() == kv_heads[source]) return;
    loader.fail(unimplemented(
        "tensor_parallel_size {}: layer {} reads the keys of layer {}, and their outputs' weights, which are stored in "
        "unlike formats, cannot be cut at the same heads; choose fewer processes",
        loader.shard().size, kv_heads.size() - 1, source));
  }

  static void scale(const nn::StepContext& step, const ops::View& values, double factor, double soft_cap) {
    if (factor == 1 && soft_cap == 0) return;
    step(ops::ScaleArgs{.values = values.floats(),
                        .scale = static_cast<float>(factor),
                        .soft_cap = static_cast<float>(soft_cap),
                        .num_rows = values.num_rows,
                        .size = values.num_columns});
  }

  // The tables of positions, and which of them each layer uses.
  void make_rotary(const std::string& root, int64_t num_positions, nn::Loader& loader) {
    // Llama 3.1 and later in GGUF: the scaling of the frequencies, worked out by the converter.
    const std::vector<float> divisors =
        loader.vector(root + "rope_freqs.weight", config_.rope.rotary_dim / 2, /*optional=*/true);
    rotary_ = {loader, config_.rope, num_positions, divisors};
    if (config_.window_rope) window_rotary_ = {loader, *config_.window_rope, num_positions, {}};
    const QueryGrowth& growth = config_.query_growth;
    const auto grow = [&](nn::Rotary& rotary) {
      if (growth.strength != 0) rotary.grow_queries(loader, growth, config_.head_dim, num_positions);
    };
    if (growth.of_unrotated) {
      grow(no_rotary_);
    } else {
      grow(rotary_);
      if (config_.window_rope) grow(window_rotary_);
    }
    for (size_t i = 0; i < layers_.size(); ++i) {
      const bool has_window = !config_.layer_windows.empty() && config_.layer_windows[i] > 0;
      const nn::Rotary& rotary = has_window && config_.window_rope ? window_rotary_ : rotary_;
      const bool rotates = config_.unrotated_layers.empty() || !config_.unrotated_layers[i];
      layers_[i].use_rotary(rotates ? &rotary : &no_rotary_);
    }
  }

  ModelConfig config_;
  nn::Embedding embedding_;
  std::unique_ptr<LayerInputs> layer_inputs_;  // or none
  std::vector<DecoderLayer> layers_;
  std::vector<std::unique_ptr<LayerEnd>> ends_;  // of each layer, or none
  std::vector<size_t> caches_;                   // of each layer, where its own begin among those of the batch
  size_t num_caches_ = 0;
  bool shares_caches_ = false;
  nn::StreamNorm norm_;
  nn::Linear head_;  // over the vocabulary, or over the labels
  nn::Rotary rotary_;
  nn::Rotary window_rotary_;
  nn::Rotary no_rotary_;
};

}  // namespace

void find_text_model(const nn::Loader& loader, DecoderShape& shape) {
  for (const char* root : {"model.language_model", "language_model.model"}) {
    if (!loader.has(std::string(root) + ".embed_tokens.weight")) continue;
    shape.root = root;
    if (shape.root.starts_with("language_model")) shape.head = "language_model.lm_head";
    shape.others = {"vision_tower.",     "vision_model.",       "multi_modal_projector.",
                    "visual.",           "model.vision_tower.", "model.multi_modal_projector.",
                    "model.visual.",     "model.embed_vision.", "model.audio_tower.",
                    "model.embed_audio."};
  }
}

Result<std::unique_ptr<Model>> build_decoder(const DecoderShape& shape, const ModelConfig& config,
                                             int64_t num_positions, nn::Loader& loader) {
  // Buffers that older exporters wrote beside the parameters; what is read with the configuration; a head repeated
  // beside tied embeddings.
  std::vector<std::string_view> ignored = {".rotary_emb.inv_freq", ".rope_factors_long.weight",
                                           ".rope_factors_short.weight"};
  const std::string head = std::string(shape.head) + ".weight";
  if (config.tie_word_embeddings || !uses_vocabulary_head(config)) {
    ignored.push_back("lm_head.weight");
    ignored.push_back(head);
  }
  ignored.insert(ignored.end(), shape.buffers.begin(), shape.buffers.end());
  // Rerankers in GGUF files: the head's two rows that they judge by, repeated.
  if (config.task == ModelTask::kClassify && config.pooling.num_labels == 0) ignored.push_back("cls.output.weight");
  if (shape.head_bias && config.tie_word_embeddings) {
    return unimplemented("config: tie_word_embeddings is true and the head has a bias; supported: one of them");
  }
  auto model = std::make_unique<Decoder>(shape, config, num_positions, loader);
  QUIRE_RETURN_IF_ERROR(loader.finish(ignored, shape.others));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace quire::models
