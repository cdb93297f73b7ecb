#include "models/dflash.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/qwen2.h"
#include "nn/attention.h"
#include "nn/mlp.h"
#include "nn/norm.h"
#include "nn/rotary.h"

namespace quire::models {
namespace {

constexpr const char* kArchitecture = "DFlashDraftModel";

// ---- configuration ----

// What heads of this architecture may say, and what is not built of it. They say it in "dflash_config" or beside it.
constexpr std::string_view kKnownInside[] = {
    "block_size",        "causal",           "mask_token",          "mask_token_id",
    "num_target_layers", "target_layer_ids", "use_aux_hidden_state"};
constexpr std::string_view kRefusedOutside[] = {"add_swa_attention_sink_bias",
                                                "attention_sink_bias",
                                                "final_logit_softcapping",
                                                "input_embedding_scale",
                                                "markov_rank",
                                                "output_multiplier",
                                                "projector_type",
                                                "use_swa"};

bool says_nothing(const boost::json::value& value) {
  return value.is_null() || (value.is_bool() && !value.get_bool()) || (value.is_int64() && value.get_int64() == 0);
}

Status not_built(std::string_view member) {
  return unimplemented("{}: heads with it are not built", member);
}

Status refuse_other_heads(const boost::json::object& config, const boost::json::object& inside) {
  for (const char* of_speculators : {"speculators_config", "speculators_model_type", "transformer_layer_config"}) {
    if (config.contains(of_speculators)) {
      return unimplemented("{}: heads in the format of Speculators are not read; take one as {} is published",
                           of_speculators, kArchitecture);
    }
  }
  if (const boost::json::value* named = config.if_contains("architectures"); named != nullptr && !named->is_null()) {
    const boost::json::array* list = named->if_array();
    if (list == nullptr || std::ranges::find(*list, boost::json::value(kArchitecture)) == list->end()) {
      return unimplemented("architectures is {}: heads of {} are what there is", boost::json::serialize(*named),
                           kArchitecture);
    }
  }
  for (const auto& [name, value] : inside) {
    const bool known = std::ranges::find(kKnownInside, std::string_view(name)) != std::end(kKnownInside);
    if (!known && !says_nothing(value)) return not_built(fmt::format("dflash_config.{}", std::string_view(name)));
  }
  for (const std::string_view name : kRefusedOutside) {
    if (const boost::json::value* value = config.if_contains(name); value != nullptr && !says_nothing(*value))
      return not_built(name);
  }
  for (const char* rotated : {"is_neox_style", "rope_is_neox_style"}) {
    const boost::json::value* value = config.if_contains(rotated);
    if (value != nullptr && value->is_bool() && !value->get_bool()) return not_built(fmt::format("{} false", rotated));
  }
  return {};
}

// Some say it inside of "dflash_config", some beside it: the one inside goes first.
class DflashReader {
 public:
  DflashReader(const boost::json::object& outside, const boost::json::object& inside)
      : outside_(outside), inside_(inside) {}
  const ConfigReader& of(std::string_view member) const { return inside_.has(member) ? inside_ : outside_; }

 private:
  ConfigReader outside_;
  ConfigReader inside_;
};

// As many as the head has layers, from the second layer to the third from the end, where it names none.
std::vector<int32_t> usual_layers(int32_t num_target_layers, int32_t num_layers) {
  if (num_layers == 1) return {num_target_layers / 2};
  std::vector<int32_t> layers;
  const double span = num_target_layers - 4;
  for (int32_t i = 0; i < num_layers; ++i) {
    layers.push_back(static_cast<int32_t>(std::nearbyint(1 + i * span / (num_layers - 1))));
  }
  return layers;
}

Result<std::vector<int32_t>> read_dflash_layers(const DflashReader& reader, const ModelConfig& config,
                                                int32_t num_target_layers) {
  constexpr const char* kMember = "target_layer_ids";
  std::vector<int32_t> layers;
  if (!reader.of(kMember).has(kMember)) {
    if (num_target_layers < 4) {
      return invalid_argument(
          "{}: the head names no layers, and num_target_layers, by which the usual ones are known, "
          "is {}, expected at least 4",
          kMember, num_target_layers);
    }
    layers = usual_layers(num_target_layers, config.num_layers);
  } else {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<double> named, reader.of(kMember).numbers(kMember));
    for (const double layer : named) {
      if (!(layer >= 0 && layer <= 10'000 && layer == std::trunc(layer))) {
        return invalid_argument("{}: {} is no layer", kMember, layer);
      }
      layers.push_back(static_cast<int32_t>(layer));
    }
  }
  if (layers.empty() || std::ranges::adjacent_find(layers, std::greater_equal<>()) != layers.end()) {
    return invalid_argument("{}: expected rising numbers, each once", kMember);
  }
  return layers;
}

// Which layers see a window is said as Qwen3 says it. A head whose layers are named so and have none is of somebody who
// meant something else.
Status read_dflash_windows(const boost::json::object& config, ModelConfig& out) {
  QUIRE_RETURN_IF_ERROR(read_qwen_windows(config, out));
  if (out.layer_windows.empty()) out.layer_windows.assign(static_cast<size_t>(out.num_layers), 0);
  const boost::json::value* types = config.if_contains("layer_types");
  if (types == nullptr || !types->is_array()) return {};
  for (size_t layer = 0; layer < types->get_array().size(); ++layer) {
    if (types->get_array()[layer] == "sliding_attention" && out.layer_windows[layer] == 0) {
      return invalid_argument(
          "layer_types names layers with sliding_attention, and use_sliding_window and sliding_window give them no "
          "window");
    }
  }
  return {};
}

// ---- layers ----

// Layers with a window see what comes before them alone, the others all of the block, unless the head says otherwise.
nn::AttentionConfig attention_of(const ModelConfig& config, int32_t layer) {
  nn::AttentionConfig out = attention_config({.qk_norm = nn::QkNorm::kHead}, config, layer);
  out.both_ways = !dflash_config(config).causal.value_or(out.window > 0);
  return out;
}

struct BlockLayer {
  BlockLayer(nn::Loader& loader, const std::string& prefix, const ModelConfig& config, int32_t index)
      : attention_norm(loader, prefix + "input_layernorm", config.hidden_size, config.norm_eps),
        attention(loader, prefix + "self_attn", attention_of(config, index)),
        mlp_norm(loader, prefix + "post_attention_layernorm", config.hidden_size, config.norm_eps),
        mlp(loader, prefix + "mlp", config.hidden_size, config.intermediate_size, /*bias=*/false, config.activation) {}

  nn::RmsNorm attention_norm;
  nn::Attention attention;
  nn::RmsNorm mlp_norm;
  nn::GatedMlp mlp;
};

class Dflash final : public Model, public DraftHead {
 public:
  Dflash(const ModelConfig& config, int64_t num_positions, nn::Loader& loader)
      : config_(config), own_(dflash_config(config)) {
    const int64_t size = config.hidden_size;
    join_ = {loader, "fc", num_floats(), size};
    context_norm_ = {loader, "hidden_norm", size, config.norm_eps};
    for (int32_t i = 0; i < config.num_layers; ++i) {
      const std::string prefix = fmt::format("layers.{}.", i);
      layers_.emplace_back(loader, prefix, config, i);
      // A configuration may name any number: the first that is not there is enough for the error.
      if (!loader.has(prefix + "input_layernorm.weight")) break;
    }
    norm_ = {loader, "norm", size, config.norm_eps};
    rotary_ = {loader, config.rope, num_positions, {}};
  }

  const ModelConfig& config() const override { return config_; }
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const override {
    std::vector<nn::KvLayerSpec> specs;
    for (const BlockLayer& layer : layers_) specs.push_back(layer.attention.kv_layer(dtype));
    return specs;
  }
  void use_rows(HeadRows* rows) override { rows_ = rows; }

  Status use_target(const Model& target) override {
    const ModelConfig& of = target.config();
    QUIRE_RETURN_IF_ERROR(check_lends_vocabulary(of, config_.hidden_size));
    if (own_.num_target_layers > 0 && own_.num_target_layers != of.num_layers) {
      return invalid_argument("the head is for a model of {} layers (num_target_layers), this one has {}",
                              own_.num_target_layers, of.num_layers);
    }
    target_ = &target;
    return {};
  }

  // Behind these layers. What those who train heads take for the states behind the last one is what follows the norm.
  Result<std::vector<int32_t>> taps(const ModelConfig& target) const override {
    if (own_.layers.back() >= target.num_layers) {
      return invalid_argument("target_layer_ids: expected rising numbers from 0 to {}, found {}", target.num_layers - 1,
                              own_.layers.back());
    }
    std::vector<int32_t> taps;
    for (const int32_t layer : own_.layers) taps.push_back(layer + (layer + 1 < target.num_layers ? 1 : 2));
    return taps;
  }

  // The first rows of the stream become what is known of the text, those behind them the block's embeddings.
  void embed(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const int64_t n = step.batch.num_tokens;
    const bool measures = step.workspace.measures();
    QUIRE_CHECK(measures || (rows_ != nullptr && target_ != nullptr && rows_->num_given <= n));
    // The largest step is all of either.
    if (const int64_t count = measures ? n : rows_->num_given; count > 0) {
      const ops::View given = step.workspace.take(count, num_floats());
      if (!measures) step.copy({rows_->given, count, num_floats()}, given);
      const ops::View context = states.residual.rows(0, count);
      join_(step, given, context);
      context_norm_(step, context);
    }
    const nn::Batch batch = block_of(step);
    if (batch.num_tokens > 0) {
      const nn::StepContext block = with_batch(step, batch);
      nn::HiddenStates tokens(block, config_.hidden_size);
      if (!measures) target_->embed(block, tokens);
      step.copy(tokens.residual, states.residual.rows(n - batch.num_tokens, batch.num_tokens));
    }
    step.workspace.rewind(mark);
  }

  void run_layers(const nn::StepContext& step, int32_t /*begin*/, int32_t /*end*/,
                  nn::HiddenStates& states) const override {
    const int64_t mark = step.workspace.mark();
    const int64_t n = step.batch.num_tokens;
    nn::Batch batch = block_of(step);
    batch.query_offsets = step.mirrored(block_offsets_);
    const int64_t first = n - batch.num_tokens;
    // The text's rows stay as they are from layer to layer; below them stand the block's, normalised anew in each.
    const ops::View x = step.workspace.take(n, config_.hidden_size);
    if (first > 0) step.copy(states.residual.rows(0, first), x.rows(0, first));
    if (batch.num_tokens == 0) {
      for (size_t i = 0; i < layers_.size(); ++i) layers_[i].attention.store(step, step.batch.layers[i], rotary_, x);
      return step.workspace.rewind(mark);
    }
    const nn::StepContext block_step = with_batch(step, batch);
    const ops::View asking = x.rows(first, batch.num_tokens);
    nn::HiddenStates block = block_in(states, batch.num_tokens);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const BlockLayer& layer = layers_[i];
      layer.attention_norm(block_step, block, asking);
      layer.attention.attend(step, batch, step.batch.layers[i], rotary_, x, block.delta);
      block.pending = true;
      layer.mlp_norm(block_step, block, asking);
      layer.mlp(block_step, asking, block.delta);
      block.pending = true;
    }
    states.pending = block.pending;
    step.workspace.rewind(mark);
  }

  // Of the block alone.
  ops::View finish(const nn::StepContext& step, nn::HiddenStates& states) const override {
    const nn::Batch batch = block_of(step);
    const ops::View normed = step.workspace.take(batch.num_tokens, config_.hidden_size);
    nn::HiddenStates block = block_in(states, batch.num_tokens);
    if (batch.num_tokens > 0) norm_(with_batch(step, batch), block, normed);
    if (rows_ != nullptr) rows_->states = normed;
    return normed;
  }

  void logits(const nn::StepContext& step, const ops::ConstView& hidden, const ops::View& out) const override {
    if (target_ != nullptr) target_->logits(step, hidden, out);
  }

 private:
  // Of a row that the larger model gives.
  int64_t num_floats() const { return std::ssize(own_.layers) * config_.hidden_size; }

  static nn::StepContext with_batch(const nn::StepContext& step, const nn::Batch& batch) {
    return {.backend = step.backend, .batch = batch, .workspace = step.workspace};
  }

  // The rows of the step that are the block, all of them where it is measured; with the step's query offsets.
  nn::Batch block_of(const nn::StepContext& step) const {
    nn::Batch batch = step.batch;
    if (step.workspace.measures()) return batch;
    const int64_t first = rows_->num_given;
    batch.num_tokens -= first;
    batch.token_ids = batch.token_ids + first;
    batch.positions = batch.positions + first;
    QUIRE_CHECK(batch.num_sequences == 1);
    block_offsets_ = {0, static_cast<int32_t>(batch.num_tokens)};
    return batch;
  }
  static nn::HiddenStates block_in(const nn::HiddenStates& states, int64_t count) {
    nn::HiddenStates block = states;
    const int64_t first = states.residual.num_rows - count;
    block.residual = states.residual.rows(first, count);
    block.delta = states.delta.rows(first, count);
    return block;
  }

  const ModelConfig config_;
  const DflashConfig own_;
  nn::Linear join_;
  nn::RmsNorm context_norm_;
  std::vector<BlockLayer> layers_;
  nn::RmsNorm norm_;
  nn::Rotary rotary_;
  HeadRows* rows_ = nullptr;
  const Model* target_ = nullptr;
  mutable std::array<int32_t, 2> block_offsets_ = {};  // of the last block's queries, in host memory
};

}  // namespace

const DflashConfig& dflash_config(const ModelConfig& head) {
  return std::get<DflashConfig>(head.family);
}

Result<ModelConfig> read_dflash_config(const boost::json::object& config, const boost::json::object& generation) {
  static const boost::json::object kNothing;
  const boost::json::value* member = config.if_contains("dflash_config");
  if (member != nullptr && !member->is_object() && !member->is_null()) {
    return invalid_argument("dflash_config must be an object");
  }
  const boost::json::object& inside = member != nullptr && member->is_object() ? member->get_object() : kNothing;
  QUIRE_RETURN_IF_ERROR(refuse_other_heads(config, inside));
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation, {.num_kv_heads = 32, .head_dim = 128, .max_position = 32768}));
  out.architecture = kArchitecture;
  QUIRE_RETURN_IF_ERROR(read_dflash_windows(config, out));
  const DflashReader reader(config, inside);
  const auto integer = [&](std::string_view name, int64_t fallback, int64_t low, int64_t high) {
    return reader.of(name).integer_or(name, fallback, low, high);
  };
  for (const auto& [name, expected] :
       {std::pair("draft_vocab_size", out.vocab_size), {"target_hidden_size", out.hidden_size}}) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t found, integer(name, expected, 1, int64_t{1} << 30));
    if (found != expected) {
      return unimplemented("{} is {}, which is not the head's and so not its model's ({}): not built", name, found,
                           expected);
    }
  }
  DflashConfig own;
  constexpr int64_t kMostLayers = 10'000;
  QUIRE_ASSIGN_OR_RETURN(const int64_t num_target_layers, integer("num_target_layers", 0, 1, kMostLayers));
  own.num_target_layers = static_cast<int32_t>(num_target_layers);
  QUIRE_ASSIGN_OR_RETURN(own.layers, read_dflash_layers(reader, out, own.num_target_layers));
  QUIRE_ASSIGN_OR_RETURN(const int64_t block_size, integer("block_size", 16, 2, 1024));
  own.block_size = static_cast<int32_t>(block_size);
  QUIRE_ASSIGN_OR_RETURN(const int64_t mask,
                         reader.of("mask_token_id").integer("mask_token_id", 0, out.vocab_size - 1));
  own.mask_token = static_cast<TokenId>(mask);
  const ConfigReader outside(config);
  const ConfigReader within(inside);
  if (outside.has("is_causal")) {
    QUIRE_ASSIGN_OR_RETURN(own.causal, outside.boolean_or("is_causal", false));
  } else if (within.has("causal")) {
    QUIRE_ASSIGN_OR_RETURN(own.causal, within.boolean_or("causal", false));
  }
  out.family = std::move(own);
  return out;
}

Result<std::unique_ptr<Model>> build_dflash(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  auto model = std::make_unique<Dflash>(config, num_positions, loader);
  constexpr std::string_view kBuffer = ".rotary_emb.inv_freq";
  QUIRE_RETURN_IF_ERROR(loader.finish({&kBuffer, 1}));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace quire::models
