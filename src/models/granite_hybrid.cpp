#include "models/granite_hybrid.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/granite.h"
#include "models/mamba_family.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

// What experts give, where there are any, and the block that every token takes.
class ExpertsAndDense final : public nn::FeedForward {
 public:
  ExpertsAndDense(nn::Loader& loader, const std::string& prefix, const ModelConfig& config, int32_t layer)
      : dense_(loader, dense_parts(loader, prefix, config), config.activation) {
    if (config.moe.num_experts > 0) experts_ = sparse_or_dense(loader, prefix, config, layer);
  }

  DType input_dtype(const nn::StepContext& step) const override {
    return experts_ == nullptr ? dense_.input_dtype(step) : DType::kF32;
  }
  void operator()(const nn::StepContext& step, const ops::ConstView& x, const ops::View& out) const override {
    dense_(step, x, out);
    if (experts_ == nullptr) return;
    const int64_t mark = step.workspace.mark();
    const ops::View of_experts = step.workspace.take(out.num_rows, out.num_columns);
    (*experts_)(step, x, of_experts);
    step(ops::AddArgs{
        .hidden = out.floats(), .delta = of_experts.floats(), .num_tokens = out.num_rows, .size = out.num_columns});
    step.workspace.rewind(mark);
  }

 private:
  // GGUF has gate and up apart, and where there are no experts the names of any dense block.
  static nn::GatedMlp::Parts dense_parts(const nn::Loader& loader, const std::string& prefix,
                                         const ModelConfig& config) {
    const int64_t size = std::get<Mamba2Config>(config.family).shared_intermediate_size;
    for (const char* block : {"shared_mlp.", "mlp."}) {
      const std::string name = prefix + block;
      if (!loader.has_weight(name + "down_proj.weight")) continue;
      return {.gate_up = {{name + "gate_proj", size}, {name + "up_proj", size}},
              .down = {name + "down_proj", config.hidden_size}};
    }
    return {.gate_up = {{prefix + "shared_mlp.input_linear", 2 * size}},
            .down = {prefix + "shared_mlp.output_linear", config.hidden_size}};
  }

  nn::GatedMlp dense_;
  std::unique_ptr<nn::FeedForward> experts_;
};

std::unique_ptr<nn::FeedForward> experts_and_dense(nn::Loader& loader, const std::string& prefix,
                                                   const ModelConfig& config, int32_t layer) {
  return std::make_unique<ExpertsAndDense>(loader, prefix, config, layer);
}

// "layer_types", or by its older name: "mamba" or "linear_attention", "attention" or "full_attention". All are Mamba's
// where there is no list.
Status read_mamba_layers(const boost::json::object& config, ModelConfig& out) {
  out.recurrent_layers.assign(static_cast<size_t>(out.num_layers), true);
  const ConfigReader reader(config);
  const char* key = reader.has("layer_types") ? "layer_types" : "layers_block_type";
  if (!reader.has(key)) return {};
  constexpr std::array<std::string_view, 2> kRecurrent = {"mamba", "linear_attention"};
  constexpr std::array<std::string_view, 2> kAttention = {"attention", "full_attention"};
  QUIRE_ASSIGN_OR_RETURN(out.recurrent_layers,
                         read_recurrent_layers(config, key, out.num_layers, kRecurrent, kAttention));
  // Without a state it is no recurrent model.
  if (std::ranges::none_of(out.recurrent_layers, [](bool recurrent) { return recurrent; }))
    out.recurrent_layers.clear();
  return {};
}

// Granite with a dense block beside its experts. usual_shared_size: of that block; 0: the configuration must say it.
Result<ModelConfig> read_shared(const boost::json::object& config, const boost::json::object& generation,
                                int64_t usual_shared_size) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_granite_config(config, generation));
  out.mlp_bias = false;
  const ConfigReader reader(config);
  Mamba2Config sizes;
  constexpr const char* kSharedSize = "shared_intermediate_size";
  QUIRE_ASSIGN_OR_RETURN(sizes.shared_intermediate_size,
                         usual_shared_size > 0 ? reader.integer_or(kSharedSize, usual_shared_size, 1, 1 << 22)
                                               : reader.integer(kSharedSize, 1, 1 << 22));
  out.family = sizes;
  QUIRE_ASSIGN_OR_RETURN(const int64_t experts, reader.integer_or("num_local_experts", 8, 0, kMostExperts));
  if (experts > 0) {
    QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, {.num_experts = 8, .experts_per_token = 2}));
    out.moe.score = RouterScore::kSoftmaxOfChosen;
  }
  return out;
}

}  // namespace

Result<ModelConfig> read_granite_hybrid_config(const boost::json::object& config,
                                               const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_shared(config, generation, 1024));
  out.architecture = "GraniteMoeHybridForCausalLM";
  QUIRE_RETURN_IF_ERROR(read_mamba_layers(config, out));
  if (!out.recurrent_layers.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t inner_size, expanded_size(config, out));
    QUIRE_RETURN_IF_ERROR(read_mamba(config, out, inner_size, std::get<Mamba2Config>(out.family)));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string positions, ConfigReader(config).text_or("position_embedding_type", "nope"));
  if (positions != "rope") out.unrotated_layers.assign(static_cast<size_t>(out.num_layers), true);
  return out;
}

Result<ModelConfig> read_granite_hybrid_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_granite_gguf_numbers(reader, {.interleaved = true, .recurrent_layers = true}));
  out.architecture = "GraniteMoeHybridForCausalLM";
  Mamba2Config sizes;
  QUIRE_ASSIGN_OR_RETURN(const int64_t experts, reader.integer_or("expert_count", 0, 0, kMostExperts));
  sizes.shared_intermediate_size = out.intermediate_size;
  if (experts > 0) {
    QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "feed_forward_length"));
    out.moe.score = RouterScore::kSoftmaxOfChosen;
    QUIRE_ASSIGN_OR_RETURN(sizes.shared_intermediate_size,
                           reader.integer("expert_shared_feed_forward_length", 1, 1 << 22));
  }
  if (!out.recurrent_layers.empty()) QUIRE_RETURN_IF_ERROR(read_gguf_mamba(reader, sizes));
  out.family = sizes;
  // The file says of the rope whether there is one.
  QUIRE_ASSIGN_OR_RETURN(const bool rotates, reader.boolean_or("rope.scaling.finetuned", false));
  if (!rotates) out.unrotated_layers.assign(static_cast<size_t>(out.num_layers), true);
  // The converter turns heads for a rope as if all of each rotated.
  if (rotates && !out.recurrent_layers.empty()) {
    return unimplemented(
        "metadata \"{}\" is true beside layers of Mamba, as Bamba has it, whose GGUF files are not read yet; give the "
        "model's safetensors",
        reader.full("rope.scaling.finetuned"));
  }
  return out;
}

Result<ModelConfig> read_granite_shared_config(const boost::json::object& config,
                                               const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_shared(config, generation, 0));
  out.architecture = "GraniteMoeSharedForCausalLM";
  return out;
}

Result<std::unique_ptr<Model>> build_granite_hybrid(const ModelConfig& config, int64_t num_positions,
                                                    nn::Loader& loader) {
  return build_decoder({.feed_forward = experts_and_dense, .attention = mamba_or_attention}, config, num_positions,
                       loader);
}

}  // namespace quire::models
