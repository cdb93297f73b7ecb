#include "models/gemma4.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gemma2.h"
#include "models/moe_family.h"
#include "nn/embedding.h"
#include "nn/moe.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

constexpr int64_t kGemma4Window = 512;
constexpr int64_t kGemma4Pattern = 6;  // every so many-th layer has no window
constexpr double kGemma4FullTheta = 1e6;
constexpr double kGemma4FullShare = 0.25;

const Gemma4Config& own(const ModelConfig& config) {
  return std::get<Gemma4Config>(config.family);
}

bool has_window(const ModelConfig& config, int32_t layer) {
  return config.layer_windows[static_cast<size_t>(layer)] > 0;
}

bool shares(const ModelConfig& config, int32_t layer) {
  return layer >= config.num_layers - own(config).num_sharing_layers;
}

// --- configuration ---

void set_gemma4(ModelConfig& out) {
  out.architecture = "Gemma4ForCausalLM";
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
  out.attention_scale = 1;
}

void set_gemma4_router(MoeConfig& moe) {
  moe.normalise = true;
  moe.expert_scales = true;
}

// "per_layer_config": what some layers have otherwise, {"5": {"head_dim": 512, "num_key_value_heads": 4}}, as newer
// exporters write it. It must say the same of all layers without a window, and nothing of the others.
Status read_layer_configs(const boost::json::value& found, ModelConfig& out, Gemma4Config& gemma) {
  const boost::json::object* layers = found.if_object();
  if (layers == nullptr) return invalid_argument("config: per_layer_config must be an object of layers' numbers");
  const int64_t windowless = std::ranges::count(out.layer_windows, 0);
  int64_t told = 0;
  for (const auto& [key, value] : *layers) {
    const boost::json::object* layer = value.if_object();
    const auto is_key = [&key = key](size_t index) { return std::to_string(index) == std::string_view(key); };
    size_t index = 0;
    while (index < out.layer_windows.size() && !is_key(index)) ++index;
    if (layer == nullptr || index == out.layer_windows.size() || out.layer_windows[index] > 0) {
      return unimplemented("config: per_layer_config has {}; supported: the numbers of layers without a window",
                           checkpoint::in_quotes(key));
    }
    const ConfigReader reader(*layer);
    QUIRE_ASSIGN_OR_RETURN(const int64_t head_dim, reader.integer_or("head_dim", out.head_dim, 2, kMostHeadDim));
    QUIRE_ASSIGN_OR_RETURN(const int64_t kv_heads,
                           reader.integer_or("num_key_value_heads", out.num_kv_heads, 1, out.num_heads));
    if (told++ > 0 && (head_dim != gemma.full_head_dim || kv_heads != gemma.full_kv_heads)) {
      return unimplemented("config: per_layer_config has layers without a window of different heads; supported: alike");
    }
    gemma.full_head_dim = static_cast<int32_t>(head_dim);
    gemma.full_kv_heads = static_cast<int32_t>(kv_heads);
  }
  if (told > 0 && told != windowless) {
    return unimplemented("config: per_layer_config has {} of the {} layers without a window; supported: all", told,
                         windowless);
  }
  return {};
}

// Heads of the layers without a window.
Status read_full_heads(const boost::json::object& config, ModelConfig& out, Gemma4Config& gemma) {
  const ConfigReader reader(config);
  gemma.full_head_dim = out.head_dim;
  gemma.full_kv_heads = out.num_kv_heads;
  if (reader.has("per_layer_config")) {
    QUIRE_RETURN_IF_ERROR(read_layer_configs(config.at("per_layer_config"), out, gemma));
  } else {
    QUIRE_ASSIGN_OR_RETURN(const int64_t head_dim, reader.integer_or("global_head_dim", 512, 2, kMostHeadDim));
    gemma.full_head_dim = static_cast<int32_t>(head_dim);
    if (gemma.keys_are_values) {
      QUIRE_ASSIGN_OR_RETURN(const int64_t kv_heads,
                             reader.integer_or("num_global_key_value_heads", out.num_kv_heads, 1, out.num_heads));
      gemma.full_kv_heads = static_cast<int32_t>(kv_heads);
    }
  }
  if (gemma.full_head_dim % 2 != 0) {
    return invalid_argument("config: global_head_dim is {}, expected an even number", gemma.full_head_dim);
  }
  if (out.num_heads % gemma.full_kv_heads != 0) {
    return invalid_argument("config: num_attention_heads={} is not a multiple of num_global_key_value_heads={}",
                            out.num_heads, gemma.full_kv_heads);
  }
  return {};
}

Status read_ropes(const boost::json::object& config, const Gemma4Config& gemma, ModelConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(out.window_rope, read_rope_of_layers(config, "sliding_attention", "", 1e4, out));
  ModelConfig full = out;
  full.head_dim = gemma.full_head_dim;
  if (ConfigReader(config).has("rope_parameters")) {
    QUIRE_ASSIGN_OR_RETURN(out.rope, read_rope_of_layers(config, "full_attention", "", kGemma4FullTheta, full));
    return {};
  }
  out.rope = {.theta = kGemma4FullTheta,
              .rotary_dim = full.head_dim,
              .scaling = RopeScaling::kProportional,
              .turning_share = kGemma4FullShare};
  return {};
}

Status read_experts(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const bool sparse, reader.boolean_or("enable_moe_block", false));
  if (!sparse) return {};
  QUIRE_ASSIGN_OR_RETURN(const int64_t experts, reader.integer("num_experts", 1, kMostExperts));
  QUIRE_ASSIGN_OR_RETURN(const int64_t chosen, reader.integer("top_k_experts", 1, experts));
  QUIRE_ASSIGN_OR_RETURN(out.moe.intermediate_size, reader.integer("moe_intermediate_size", 1, 1 << 22));
  out.moe.num_experts = static_cast<int32_t>(experts);
  out.moe.experts_per_token = static_cast<int32_t>(chosen);
  set_gemma4_router(out.moe);
  out.moe.sparse_layers.assign(static_cast<size_t>(out.num_layers), true);
  return {};
}

// That what is shared has a layer to be shared from.
Status check_sharing(const ModelConfig& config) {
  const int32_t first = config.num_layers - own(config).num_sharing_layers;
  for (int32_t layer = first; layer < config.num_layers; ++layer) {
    int32_t source = first - 1;
    while (source >= 0 && has_window(config, source) != has_window(config, layer)) --source;
    if (source >= 0) continue;
    return invalid_argument(
        "config: num_kv_shared_layers is {}: before layer {} there is none of its type to share with",
        own(config).num_sharing_layers, first);
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_gemma4_config(const boost::json::object& whole, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object config, text_config(whole));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 4,
                                                               .head_dim = 256,
                                                               .max_position = 131072,
                                                               .tie_word_embeddings = true,
                                                               .scaled_context = true,
                                                               .activation_key = "hidden_activation",
                                                               .activation = "gelu_pytorch_tanh"}));
  set_gemma4(out);
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const std::string both_ways, reader.text_or("use_bidirectional_attention", "vision"));
  if (both_ways != "vision") {
    return unimplemented("config: use_bidirectional_attention is {}, supported: null and \"vision\"",
                         checkpoint::in_quotes(both_ways));
  }
  QUIRE_ASSIGN_OR_RETURN(out.logits_soft_cap, reader.number_or("final_logit_softcapping", 0));
  if (reader.has("final_logit_softcapping") && !(out.logits_soft_cap > 0)) {
    return invalid_argument("config: final_logit_softcapping is {}, expected more than 0 or null", out.logits_soft_cap);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, kGemma4Window));
  if (!window) return unimplemented("config: sliding_window is null, expected a number of tokens");
  QUIRE_RETURN_IF_ERROR(read_layer_windows(
      config, *window, [](int32_t layer) { return (layer + 1) % kGemma4Pattern != 0; }, out));
  out.layer_windows.back() = 0;  // as the reference has it, whatever the file says
  Gemma4Config gemma;
  QUIRE_ASSIGN_OR_RETURN(gemma.keys_are_values, reader.boolean_or("attention_k_eq_v", false));
  QUIRE_ASSIGN_OR_RETURN(const int64_t sharing,
                         reader.integer_or("num_kv_shared_layers", 0, 0, int64_t{out.num_layers} - 1));
  gemma.num_sharing_layers = static_cast<int32_t>(sharing);
  QUIRE_ASSIGN_OR_RETURN(gemma.wide_sharing_mlp, reader.boolean_or("use_double_wide_mlp", false));
  QUIRE_ASSIGN_OR_RETURN(gemma.layer_input_size, reader.integer_or("hidden_size_per_layer_input", 256, 0, 1 << 16));
  if (gemma.layer_input_size > 0) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t rows, reader.integer_or("vocab_size_per_layer_input", 262144, 1, 1 << 24));
    if (rows != out.vocab_size) {
      return unimplemented("config: vocab_size_per_layer_input is {}, supported: vocab_size, which is {}", rows,
                           out.vocab_size);
    }
  }
  QUIRE_RETURN_IF_ERROR(read_full_heads(config, out, gemma));
  QUIRE_RETURN_IF_ERROR(read_ropes(config, gemma, out));
  QUIRE_RETURN_IF_ERROR(read_experts(config, out));
  out.family = gemma;
  QUIRE_RETURN_IF_ERROR(check_sharing(out));
  return out;
}

namespace {

// Numbers that a GGUF file has for each layer, and that must be alike in all layers of a kind. `of_window`, `of_full`:
// what the layers with a window and those without one have; 0: there are none.
Status split_by_kind(const GgufReader& reader, std::string_view key, const std::vector<int64_t>& all,
                     const ModelConfig& config, int64_t& of_window, int64_t& of_full) {
  of_window = of_full = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    int64_t& kind = has_window(config, layer) ? of_window : of_full;
    const int64_t value = all[static_cast<size_t>(layer)];
    if (kind != 0 && kind != value) {
      return unimplemented("metadata \"{}\" has {} and {} for layers of one kind; supported: one number",
                           reader.full(key), kind, value);
    }
    kind = value;
  }
  return {};
}

Status read_gguf_layers(const GgufReader& reader, ModelConfig& out, Gemma4Config& gemma) {
  constexpr std::string_view kKvHeads = "attention.head_count_kv";
  constexpr std::string_view kInner = "feed_forward_length";
  QUIRE_RETURN_IF_ERROR(read_gguf_windows(reader, kGemma4Pattern, out));
  QUIRE_ASSIGN_OR_RETURN(const int64_t sharing,
                         reader.integer_or("attention.shared_kv_layers", 0, 0, int64_t{out.num_layers} - 1));
  gemma.num_sharing_layers = static_cast<int32_t>(sharing);
  if (reader.has(kKvHeads)) {
    QUIRE_ASSIGN_OR_RETURN(const auto all, reader.integers_of_layers(kKvHeads, out.num_layers, 1, out.num_heads));
    int64_t of_window;
    int64_t of_full;
    QUIRE_RETURN_IF_ERROR(split_by_kind(reader, kKvHeads, all, out, of_window, of_full));
    out.num_kv_heads = static_cast<int32_t>(of_window == 0 ? of_full : of_window);
    gemma.full_kv_heads = static_cast<int32_t>(of_full == 0 ? of_window : of_full);
  } else {
    gemma.full_kv_heads = out.num_kv_heads;
  }
  if (out.num_heads % out.num_kv_heads != 0 || out.num_heads % gemma.full_kv_heads != 0) {
    return invalid_argument("metadata: {} heads are no multiple of the {} and {} heads of keys", out.num_heads,
                            out.num_kv_heads, gemma.full_kv_heads);
  }
  QUIRE_ASSIGN_OR_RETURN(const auto sizes, reader.integers_of_layers(kInner, out.num_layers, 1, 1 << 23));
  gemma.wide_sharing_mlp = sharing > 0 && sizes.back() == 2 * sizes.front();
  for (int32_t layer = 0; layer < out.num_layers; ++layer) {
    const bool is_wide = gemma.wide_sharing_mlp && layer >= out.num_layers - gemma.num_sharing_layers;
    if (sizes[static_cast<size_t>(layer)] == (is_wide ? 2 : 1) * sizes.front()) continue;
    return unimplemented("metadata \"{}\" is {} for layer {}, expected {}", reader.full(kInner),
                         sizes[static_cast<size_t>(layer)], layer, (is_wide ? 2 : 1) * sizes.front());
  }
  // The first layer without a window that stores keys says whether they are values, too.
  for (int32_t layer = 0; layer < out.num_layers - gemma.num_sharing_layers; ++layer) {
    if (has_window(out, layer)) continue;
    gemma.keys_are_values = !reader.has_tensor(fmt::format("model.layers.{}.self_attn.v_proj.weight", layer));
    break;
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_gemma4_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_gguf_decoder(reader, {.activation = Activation::kGeluTanh, .lists_layers = true, .scaled_context = true}));
  set_gemma4(out);
  Gemma4Config gemma;
  gemma.full_head_dim = out.head_dim;  // and what rotates of it, by the divisors that stand in a tensor
  QUIRE_ASSIGN_OR_RETURN(const int64_t head_dim,
                         reader.integer_or("attention.key_length_swa", out.head_dim, 2, kMostHeadDim));
  out.head_dim = static_cast<int32_t>(head_dim);
  out.window_rope = RopeConfig{};
  QUIRE_ASSIGN_OR_RETURN(out.window_rope->theta, reader.number_or("rope.freq_base_swa", 1e4));
  QUIRE_ASSIGN_OR_RETURN(const int64_t rotary_dim,
                         reader.integer_or("rope.dimension_count_swa", head_dim, 2, head_dim));
  out.window_rope->rotary_dim = static_cast<int32_t>(rotary_dim);
  QUIRE_RETURN_IF_ERROR(nn::validate(*out.window_rope, out.head_dim).with_prefix("metadata: "));
  QUIRE_ASSIGN_OR_RETURN(out.logits_soft_cap, read_gguf_soft_cap(reader, "final_logit_softcapping", 0));
  QUIRE_ASSIGN_OR_RETURN(gemma.layer_input_size, reader.integer_or("embedding_length_per_layer_input", 0, 0, 1 << 16));
  QUIRE_RETURN_IF_ERROR(read_gguf_layers(reader, out, gemma));
  if (reader.has("expert_count")) {
    QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length"));
    set_gemma4_router(out.moe);
  }
  out.family = gemma;
  QUIRE_RETURN_IF_ERROR(check_sharing(out));
  return out;
}

namespace {

// --- layers ---

std::unique_ptr<nn::SelfAttention> make_attention(nn::Loader& loader, const std::string& prefix,
                                                  const ModelConfig& config, int32_t layer) {
  const Gemma4Config& gemma = own(config);
  const bool is_full = !has_window(config, layer);
  return std::make_unique<nn::Attention>(
      loader, prefix + "self_attn",
      nn::AttentionConfig{.hidden_size = config.hidden_size,
                          .num_heads = config.num_heads,
                          .num_kv_heads = is_full ? gemma.full_kv_heads : config.num_kv_heads,
                          .head_dim = is_full ? gemma.full_head_dim : config.head_dim,
                          .bias = config.attention_bias,
                          .output_bias = config.attention_output_bias,
                          .qk_norm = nn::QkNorm::kHead,
                          .norm_eps = config.norm_eps,
                          .scale = static_cast<float>(config.attention_scale),
                          .window = config.layer_windows[static_cast<size_t>(layer)],
                          .value_norm = true,
                          .keys_are_values = is_full && gemma.keys_are_values,
                          .stores = !shares(config, layer)});
}

// The dense block with experts beside it, each between norms of its own; the router reads the stream itself.
class DenseAndSparse final : public nn::FeedForward {
 public:
  DenseAndSparse(nn::Loader& loader, const std::string& prefix, const ModelConfig& config, int64_t intermediate_size)
      : size_(config.hidden_size),
        before_dense_(loader, prefix + "pre_feedforward_layernorm", size_, config.norm_eps),
        dense_(loader, prefix + "mlp", size_, intermediate_size, /*bias=*/false, config.activation),
        after_dense_(loader, prefix + "post_feedforward_layernorm_1", size_, config.norm_eps),
        before_router_(loader, router_scale(loader, prefix), size_, config.norm_eps),
        before_experts_(loader, prefix + "pre_feedforward_layernorm_2", size_, config.norm_eps),
        experts_(loader, prefix, {.moe = config.moe, .hidden_size = size_, .activation = config.activation}),
        after_experts_(loader, prefix + "post_feedforward_layernorm_2", size_, config.norm_eps) {}

  DType input_dtype(const nn::StepContext& /*step*/) const override { return DType::kF32; }

  void operator()(const nn::StepContext& step, const ops::ConstView& x, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View normed = step.workspace.take(x.num_rows, size_);
    const ops::View for_router = step.workspace.take(x.num_rows, size_);
    const ops::View sparse = step.workspace.take(x.num_rows, size_);
    apply(step, before_dense_, x, normed);
    dense_(step, normed, out);
    after_dense_(step, out);
    apply(step, before_router_, x, for_router);
    apply(step, before_experts_, x, normed);
    experts_.run(step, for_router, normed, sparse);
    after_experts_(step, sparse);
    step(ops::AddArgs{.hidden = out.floats(), .delta = sparse.floats(), .num_tokens = x.num_rows, .size = size_});
    step.workspace.rewind(mark);
  }

 private:
  std::vector<float> router_scale(nn::Loader& loader, const std::string& prefix) const {
    std::vector<float> scale = loader.vector(prefix + "router.scale", size_);
    for (float& value : scale) value = static_cast<float>(value / std::sqrt(static_cast<double>(size_)));
    return scale;
  }
  static void apply(const nn::StepContext& step, const nn::RmsNorm& norm, const ops::ConstView& x,
                    const ops::View& out) {
    step.copy(x, out);
    norm(step, out);
  }

  int64_t size_;
  nn::RmsNorm before_dense_;
  nn::GatedMlp dense_;
  nn::RmsNorm after_dense_;
  nn::RmsNorm before_router_;
  nn::RmsNorm before_experts_;
  nn::MoeBlock experts_;
  nn::RmsNorm after_experts_;
};

std::unique_ptr<nn::FeedForward> make_feed_forward(nn::Loader& loader, const std::string& prefix,
                                                   const ModelConfig& config, int32_t layer) {
  const bool is_wide = own(config).wide_sharing_mlp && shares(config, layer);
  const int64_t size = (is_wide ? 2 : 1) * config.intermediate_size;
  if (config.moe.num_experts > 0) return std::make_unique<DenseAndSparse>(loader, prefix, config, size);
  return std::make_unique<nn::GatedMlp>(loader, prefix + "mlp", config.hidden_size, size, /*bias=*/false,
                                        config.activation);
}

// Of every token what each layer is given: a row of a table, and a projection of the embedding.
class TokenInputs final : public LayerInputs {
 public:
  TokenInputs(nn::Loader& loader, const std::string& prefix, const ModelConfig& config)
      : layers_(config.num_layers),
        size_(own(config).layer_input_size),
        table_(loader, prefix + "embed_tokens_per_layer.weight", config.vocab_size, layers_ * size_),
        projection_(loader, prefix + "per_layer_model_projection", config.hidden_size, layers_ * size_),
        // Of what is divided by the root of hidden_size: here it is not, and what is added to its mean square is
        // larger.
        norm_(loader, prefix + "per_layer_projection_norm", size_,
              config.norm_eps * static_cast<double>(config.hidden_size)) {}

  void make(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const int64_t n = step.batch.num_tokens;
    constexpr double kHalf = 0.5;  // of the sum of two, whose variance stays
    states.layer_inputs = step.workspace.take(n, layers_ * size_);
    const ops::View& inputs = states.layer_inputs;
    table_(step, step.batch.token_ids, inputs);
    step(ops::ScaleArgs{.values = inputs.floats(),
                        .scale = static_cast<float>(std::sqrt(kHalf * static_cast<double>(size_))),
                        .num_rows = n,
                        .size = inputs.num_columns});
    const int64_t mark = step.workspace.mark();
    const ops::View projected = step.workspace.take(n, layers_ * size_);
    projection_(step, states.residual, projected);
    step(ops::RmsNormArgs{.hidden = projected.floats(),
                          .weight = norm_.weight(),
                          .eps = norm_.eps(),
                          .num_tokens = n,
                          .num_groups = static_cast<int64_t>(layers_),
                          .size = size_,
                          .out = projected});
    step(ops::AddArgs{.hidden = inputs.floats(),
                      .delta = projected.floats(),
                      .delta_scale = static_cast<float>(std::sqrt(kHalf)),
                      .num_tokens = n,
                      .size = inputs.num_columns});
    step.workspace.rewind(mark);
  }

 private:
  int64_t layers_;
  int64_t size_;
  nn::Embedding table_;
  nn::Linear projection_;
  nn::RmsNorm norm_;
};

std::unique_ptr<LayerInputs> make_inputs(nn::Loader& loader, const std::string& prefix, const ModelConfig& config) {
  if (own(config).layer_input_size == 0) return nullptr;
  return std::make_unique<TokenInputs>(loader, prefix, config);
}

// Adds the layer's own input, gated by the stream, and scales what comes of it.
class GatedInput final : public LayerEnd {
 public:
  GatedInput(nn::Loader& loader, const std::string& prefix, const ModelConfig& config, int32_t layer)
      : size_(own(config).layer_input_size), first_(layer * size_), activation_(config.activation) {
    if (size_ > 0) {
      gate_ = {loader, prefix + "per_layer_input_gate", config.hidden_size, size_};
      projection_ = {loader, prefix + "per_layer_projection", size_, config.hidden_size};
      norm_ = {loader, prefix + "post_per_layer_input_norm", config.hidden_size, config.norm_eps};
    }
    const std::vector<float> scale = loader.vector(prefix + "layer_scalar", 1);
    if (!scale.empty()) scale_ = scale[0];
  }

  void operator()(const nn::StepContext& step, nn::HiddenStates& states) const override {
    states.add_delta(step);
    if (size_ > 0) add_input(step, states);
    if (scale_ == 1) return;
    step(ops::ScaleArgs{.values = states.residual.floats(),
                        .scale = scale_,
                        .num_rows = states.residual.num_rows,
                        .size = states.residual.num_columns});
  }

 private:
  void add_input(const nn::StepContext& step, nn::HiddenStates& states) const {
    const int64_t n = step.batch.num_tokens;
    const int64_t mark = step.workspace.mark();
    const ops::View both = step.workspace.take(n, 2 * size_);
    const ops::View gated = step.workspace.take(n, size_);
    gate_(step, states.residual, both.columns(0, size_));
    step.copy(states.layer_inputs.columns(first_, size_), both.columns(size_, size_));
    step(ops::ActivationArgs{.function = activation_, .in = both, .num_tokens = n, .size = size_, .out = gated});
    projection_(step, gated, states.delta);
    norm_(step, states.delta);
    states.pending = true;
    states.add_delta(step);
    step.workspace.rewind(mark);
  }

  int64_t size_;
  int64_t first_;  // column of the layer's input
  Activation activation_;
  nn::Linear gate_;
  nn::Linear projection_;
  nn::RmsNorm norm_;
  float scale_ = 1;
};

std::unique_ptr<LayerEnd> make_end(nn::Loader& loader, const std::string& prefix, const ModelConfig& config,
                                   int32_t layer) {
  return std::make_unique<GatedInput>(loader, prefix, config, layer);
}

// The layer whose keys and values each reads.
std::vector<int32_t> caches_of(const ModelConfig& config) {
  const int32_t first = config.num_layers - own(config).num_sharing_layers;
  std::vector<int32_t> caches;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    int32_t source = std::min(layer, first - 1);
    while (layer >= first && has_window(config, source) != has_window(config, layer)) --source;
    caches.push_back(layer < first ? layer : source);
  }
  return caches;
}

}  // namespace

Result<std::unique_ptr<Model>> build_gemma4(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  const Gemma4Config& gemma = own(config);
  if (loader.stage().count > 1 && (gemma.layer_input_size > 0 || gemma.num_sharing_layers > 0)) {
    return unimplemented(
        "Gemma 4 with inputs of each layer or layers that share a cache is computed in one stage; leave out "
        "pipeline_parallel_size");
  }
  const bool is_sparse = config.moe.num_experts > 0;
  DecoderShape shape{.after_attention = "post_attention_layernorm",
                     .before_mlp = is_sparse ? "" : "pre_feedforward_layernorm",
                     .after_mlp = "post_feedforward_layernorm",
                     .feed_forward = make_feed_forward,
                     .attention = make_attention,
                     .layer_end = make_end,
                     .layer_inputs = make_inputs,
                     .caches = caches_of(config)};
  find_text_model(loader, shape);
  // Exporters may keep what the reference leaves alone: projections of layers that read others' caches.
  std::vector<std::string> unused;
  for (int32_t layer = config.num_layers - own(config).num_sharing_layers; layer < config.num_layers; ++layer) {
    for (const char* name : {"k_proj", "v_proj", "k_norm", "v_norm"})
      unused.push_back(fmt::format("{}.layers.{}.self_attn.{}.", shape.root, layer, name));
  }
  shape.others.insert(shape.others.end(), unused.begin(), unused.end());
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
