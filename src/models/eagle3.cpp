#include "models/eagle3.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "models/config_reader.h"
#include "nn/attention.h"
#include "nn/embedding.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

constexpr int64_t kStates = 3;  // layers whose states it reads
constexpr const char* kLayer = "midlayer";

const Eagle3Config& own_of(const ModelConfig& config) {
  return std::get<Eagle3Config>(config.family);
}

nn::Attention make_attention(nn::Loader& loader, const ModelConfig& config) {
  const std::string prefix = std::string(kLayer) + ".self_attn";
  const int64_t queries = int64_t{config.num_heads} * config.head_dim;
  const int64_t keys = int64_t{config.num_kv_heads} * config.head_dim;
  const nn::AttentionConfig attention = {.hidden_size = 2 * config.hidden_size,
                                         .num_heads = config.num_heads,
                                         .num_kv_heads = config.num_kv_heads,
                                         .head_dim = config.head_dim,
                                         .norm_eps = config.norm_eps,
                                         .scale = static_cast<float>(config.attention_scale)};
  return {loader,
          prefix,
          attention,
          {{prefix + ".q_proj", queries, config.attention_bias},
           {prefix + ".k_proj", keys, config.attention_bias},
           {prefix + ".v_proj", keys, config.attention_bias}},
          nn::Linear::Part{prefix + ".o_proj", config.hidden_size, config.attention_output_bias}};
}

// Of a checkpoint whose head has fewer tokens: which of the larger vocabulary each is; empty: all of them.
Result<std::vector<TokenId>> read_eagle3_vocabulary(const checkpoint::Checkpoint& checkpoint,
                                                    const ModelConfig& config) {
  const int64_t size = own_of(config).draft_vocab_size;
  if (size == config.vocab_size) return std::vector<TokenId>();
  const checkpoint::CheckpointTensor* tensor = checkpoint.find("d2t");
  if (tensor == nullptr) {
    return data_loss("d2t is missing: the head has {} tokens of {}, and nothing says which", size, config.vocab_size);
  }
  if (tensor->view.dtype != DType::kI64 || tensor->view.shape != Shape{size} || tensor->view.data == nullptr) {
    return data_loss("d2t: expected {} whole numbers (I64)", size);
  }
  // By how much each of them is beyond its own number.
  const auto* beyond = static_cast<const int64_t*>(tensor->view.data);
  std::vector<TokenId> ids;
  for (int64_t i = 0; i < size; ++i) {
    const bool inside = beyond[i] >= -i && beyond[i] < config.vocab_size - i;
    if (!inside) return data_loss("d2t[{}] is {}: token {} is none of {}", i, beyond[i], i, config.vocab_size);
    ids.push_back(static_cast<TokenId>(i + beyond[i]));
  }
  return ids;
}

class Eagle3 final : public Model, public DraftHead {
 public:
  Eagle3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader)
      : config_(config),
        own_(own_of(config)),
        has_embeddings_(loader.has("embed_tokens.weight")),
        backend_(loader.backend()) {
    const int64_t size = config.hidden_size;
    const std::string layer = kLayer;
    const auto norm = [&](const std::string& name) {
      return nn::RmsNorm(loader, name, size, config.norm_eps, config.norm_weight_offset);
    };
    if (has_embeddings_) embedding_ = {loader, "embed_tokens.weight", config.vocab_size, size};
    join_ = {loader, "fc", kStates * own_.target_hidden_size, size, loader.has("fc.bias")};
    token_norm_ = norm(layer + ".input_layernorm");
    state_norm_ = norm(layer + ".hidden_norm");
    attention_ = make_attention(loader, config);
    mlp_norm_ = norm(layer + ".post_attention_layernorm");
    mlp_ = std::make_unique<nn::GatedMlp>(loader, layer + ".mlp", size, config.intermediate_size, config.mlp_bias,
                                          config.activation);
    norm_ = norm("norm");
    head_ = {loader, "lm_head", size, own_.draft_vocab_size, /*bias=*/false, nn::WeightRole::kHead};
    rotary_ = {loader, config.rope, num_positions, {}};
  }

  const ModelConfig& config() const override { return config_; }
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const override { return {attention_.kv_layer(dtype)}; }
  void use_rows(HeadRows* rows) override { rows_ = rows; }

  Status use_target(const Model& target) override {
    const ModelConfig& of = target.config();
    if (own_.target_hidden_size != of.hidden_size) {
      return invalid_argument("the head is for a model of hidden_size {}, this one has {}", own_.target_hidden_size,
                              of.hidden_size);
    }
    if (!has_embeddings_ && (config_.hidden_size != of.hidden_size || !lends_vocabulary(of))) {
      return invalid_argument(
          "the head has no embed_tokens.weight, and those of {} are not what it reads: choose a head that was made for "
          "it",
          of.architecture);
    }
    if (!has_embeddings_) embeds_ = &target;
    return {};
  }
  bool reads_target() const override { return !has_embeddings_; }
  Result<std::vector<int32_t>> taps(const ModelConfig& target) const override {
    return eagle3_layers(config_, target.num_layers);
  }
  Status read_beside_weights(const checkpoint::Checkpoint& checkpoint) override {
    QUIRE_ASSIGN_OR_RETURN(ids_, read_eagle3_vocabulary(checkpoint, config_));
    if (ids_.empty() || backend_.computes_in_host_memory()) return {};
    return place_tokens();
  }

  // The residual becomes the states, the delta the embeddings.
  void embed(const nn::StepContext& step, nn::HiddenStates& states) const override {
    if (has_embeddings_) {
      embedding_(step, step.batch.token_ids, states.delta);
    } else {
      nn::HiddenStates tokens(step, config_.hidden_size);
      if (embeds_ != nullptr) embeds_->embed(step, tokens);
      states.delta = tokens.residual;
    }
    const int64_t width = kStates * own_.target_hidden_size;
    const ops::View given = step.workspace.take(step.batch.num_tokens, width);
    if (step.workspace.measures()) return join_(step, given, states.residual);
    QUIRE_CHECK(rows_ != nullptr && rows_->given != nullptr);
    const int64_t count = step.batch.num_tokens;
    if (rows_->are_own) return step.copy({rows_->given, count, config_.hidden_size}, states.residual);
    step.copy({rows_->given, count, width}, given);
    join_(step, given, states.residual);
  }

  void run_layers(const nn::StepContext& step, int32_t /*begin*/, int32_t /*end*/,
                  nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const int64_t size = config_.hidden_size;
    const ops::View both = step.workspace.take(step.batch.num_tokens, 2 * size);  // [num_tokens, embeddings | states]
    step.copy(states.delta, both.columns(0, size));
    step.copy(states.residual, both.columns(size, size));
    token_norm_(step, both.columns(0, size));
    state_norm_(step, both.columns(size, size));
    if (own_.norm_before_residual) step.copy(both.columns(size, size), states.residual);
    attention_(step, step.batch.layers.front(), rotary_, both, states.delta);
    states.pending = true;
    const ops::View normed = step.workspace.take(step.batch.num_tokens, size);
    mlp_norm_(step, states, normed);
    (*mlp_)(step, normed, states.delta);
    states.pending = true;
    step.workspace.rewind(mark);
  }

  ops::View finish(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const ops::View normed = step.workspace.take(step.batch.num_tokens, config_.hidden_size);
    norm_(step, states, normed);
    if (rows_ != nullptr) rows_->states = states.residual;
    return normed;
  }

  void logits(const nn::StepContext& step, const ops::ConstView& hidden, const ops::View& out) const override {
    if (own_.draft_vocab_size == config_.vocab_size) return head_(step, hidden, out);
    const int64_t mark = step.workspace.mark();
    const ops::View own = step.workspace.take(hidden.num_rows, own_.draft_vocab_size);
    head_(step, hidden, own);
    if (!backend_.computes_in_host_memory()) {
      spread_on_device(step, own, out);
    } else if (!step.workspace.measures()) {
      spread(own, out);
    }
    step.workspace.rewind(mark);
  }

 private:
  // To the places of the larger vocabulary; its other tokens are never guessed.
  void spread(const ops::View& own, const ops::View& out) const {
    QUIRE_CHECK(static_cast<int64_t>(ids_.size()) == own.num_columns);
    for (int64_t row = 0; row < own.num_rows; ++row) {
      const float* from = own.floats() + row * own.num_columns;
      float* to = out.floats() + row * out.num_columns;
      std::fill_n(to, out.num_columns, -std::numeric_limits<float>::infinity());
      for (size_t i = 0; i < ids_.size(); ++i) to[ids_[i]] = from[i];
    }
  }

  // For a device with memory of its own.
  Status place_tokens() {
    places_.assign(static_cast<size_t>(config_.vocab_size), static_cast<TokenId>(own_.draft_vocab_size));
    for (size_t i = 0; i < ids_.size(); ++i) places_[static_cast<size_t>(ids_[i])] = static_cast<TokenId>(i);
    const auto upload = [&](const void* from, size_t bytes, Buffer& to) {
      to = Buffer(backend_.allocator(), bytes);
      if (to.data() != nullptr) backend_.upload(to.data(), from, bytes);
      return to.data() != nullptr;
    };
    const float never = -std::numeric_limits<float>::infinity();
    if (upload(places_.data(), places_.size() * sizeof(TokenId), places_there_) &&
        upload(&never, sizeof(never), never_))
      return {};
    return resource_exhausted("no memory for the places of the head's {} tokens", ids_.size());
  }

  // The same as spread(): a row's logits, with that of a token that is never guessed behind them, are a table of one
  // column, in which each of the larger vocabulary is looked up.
  void spread_on_device(const nn::StepContext& step, const ops::View& own, const ops::View& out) const {
    const int64_t size = own.num_columns;
    const ops::View table = step.workspace.take(own.num_rows, size + 1);
    if (step.workspace.measures()) return;
    step.copy(own, table.columns(0, size));
    ops::ConstView never(never_.as<float>(), own.num_rows, 1);
    never.row_stride = 0;
    step.copy(never, table.columns(size, 1));
    for (int64_t row = 0; row < own.num_rows; ++row) {
      step(ops::EmbeddingArgs{.ids = {places_.data(), places_there_.as<TokenId>()},
                              .num_tokens = config_.vocab_size,
                              .table = {table.rows(row, 1).floats(), DType::kF32, Shape{size + 1, 1}},
                              .out = out.rows(row, 1).floats()});
    }
  }

  const ModelConfig config_;
  const Eagle3Config own_;
  const bool has_embeddings_;
  ops::Backend& backend_;
  nn::Embedding embedding_;
  nn::Linear join_;
  nn::RmsNorm token_norm_;
  nn::RmsNorm state_norm_;
  nn::Attention attention_;
  nn::RmsNorm mlp_norm_;
  std::unique_ptr<nn::FeedForward> mlp_;
  nn::RmsNorm norm_;
  nn::Linear head_;
  nn::Rotary rotary_;
  HeadRows* rows_ = nullptr;
  const Model* embeds_ = nullptr;
  std::vector<TokenId> ids_;  // [draft_vocab_size]; empty: of the larger vocabulary
  // Of a device with memory of its own: of each token of that one its place here, or the place behind the last; there,
  // too, and the logit of that place.
  std::vector<TokenId> places_;
  Buffer places_there_;
  Buffer never_;
};

}  // namespace

Result<std::vector<int32_t>> eagle3_layers(const ModelConfig& head, int32_t num_layers) {
  const std::vector<int32_t>& named = own_of(head).layers;
  if (named.empty()) {
    if (num_layers < 6) {
      return invalid_argument(
          "eagle_aux_hidden_state_layer_ids: the head names no layers, and the usual ones are those of a model of at "
          "least 6, this one has {}",
          num_layers);
    }
    return std::vector<int32_t>{2, num_layers / 2, num_layers - 3};
  }
  const bool rises = std::ranges::adjacent_find(named, std::greater_equal<>()) == named.end();
  if (static_cast<int64_t>(named.size()) != kStates || !rises || named.front() < 0 || named.back() > num_layers) {
    return invalid_argument("eagle_aux_hidden_state_layer_ids: expected {} rising numbers from 0 to {}", kStates,
                            num_layers);
  }
  return named;
}

Result<ModelConfig> read_eagle3_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {}));
  out.architecture = "LlamaForCausalLMEagle3";
  if (out.num_layers != 1) {
    return unimplemented("num_hidden_layers is {}: heads of one layer are what there is", out.num_layers);
  }
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  Eagle3Config own;
  QUIRE_ASSIGN_OR_RETURN(own.draft_vocab_size,
                         reader.integer_or("draft_vocab_size", out.vocab_size, 1, out.vocab_size));
  constexpr int64_t kMostHidden = int64_t{1} << 20;
  QUIRE_ASSIGN_OR_RETURN(own.target_hidden_size,
                         reader.integer_or("target_hidden_size", out.hidden_size, 1, kMostHidden));
  QUIRE_ASSIGN_OR_RETURN(own.norm_before_residual, reader.boolean_or("norm_before_residual", false));
  // At the top a layer's number is that of the layer before which its states are taken, in "eagle_config" that of the
  // layer behind which they are: vLLM's convention, and that of those who train heads.
  constexpr const char* kLayers = "eagle_aux_hidden_state_layer_ids";
  const boost::json::value* inner = config.if_contains("eagle_config");
  const bool is_inner = inner != nullptr && inner->is_object() && inner->get_object().contains(kLayers);
  const ConfigReader from(is_inner ? inner->get_object() : config);
  if (from.has(kLayers)) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<double> layers, from.numbers(kLayers));
    for (const double layer : layers) {
      if (!(layer >= 0 && layer <= 10'000 && layer == static_cast<int32_t>(layer))) {
        return invalid_argument("{}: {} is no layer", kLayers, layer);
      }
      own.layers.push_back(static_cast<int32_t>(layer) + (is_inner ? 1 : 0));
    }
  }
  out.family = std::move(own);
  return out;
}

Result<std::unique_ptr<Model>> build_eagle3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  auto model = std::make_unique<Eagle3>(config, num_positions, loader);
  // Which tokens the head has is read beside it.
  const std::vector<std::string_view> ignored = {"d2t", "t2d", ".rotary_emb.inv_freq"};
  QUIRE_RETURN_IF_ERROR(loader.finish(ignored));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace quire::models
