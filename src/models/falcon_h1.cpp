#include "models/falcon_h1.h"

#include <utility>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/mamba_family.h"
#include "nn/linear.h"
#include "nn/mamba2.h"

namespace quire::models {
namespace {

void scale_values(const nn::StepContext& step, const ops::View& values, float factor) {
  if (factor == 1) return;
  step(ops::ScaleArgs{
      .values = values.floats(), .scale = factor, .num_rows = values.num_rows, .size = values.num_columns});
}

// What stands in a layer, its input and its output multiplied. Biases are behind the first and before the second, so
// neither is a factor of weights.
class ScaledAttention final : public nn::SelfAttention {
 public:
  ScaledAttention(std::unique_ptr<nn::SelfAttention> inner, double input, double output)
      : inner_(std::move(inner)), input_(static_cast<float>(input)), output_(static_cast<float>(output)) {}

  DType input_dtype(const nn::StepContext& step) const override {
    return input_ == 1 ? inner_->input_dtype(step) : DType::kF32;
  }
  nn::KvLayerSpec kv_layer(DType dtype) const override { return inner_->kv_layer(dtype); }
  void operator()(const nn::StepContext& step, const nn::CacheLayer& layer, const nn::Rotary& rotary,
                  const ops::ConstView& x, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    ops::ConstView in = x;
    if (input_ != 1) {
      const ops::View scaled = step.workspace.take(x.num_rows, x.num_columns);
      step.copy(x, scaled);
      scale_values(step, scaled, input_);
      in = scaled;
    }
    (*inner_)(step, layer, rotary, in, out);
    scale_values(step, out, output_);
    step.workspace.rewind(mark);
  }

 private:
  std::unique_ptr<nn::SelfAttention> inner_;
  float input_;
  float output_;
};

// down(f(m gate(x)) * up(x)) n.
class ScaledMlp final : public nn::FeedForward {
 public:
  ScaledMlp(nn::Loader& loader, const std::string& prefix, const ModelConfig& config)
      : function_(config.activation), output_(static_cast<float>(std::get<FalconH1Config>(config.family).mlp_output)) {
    const int64_t whole = config.intermediate_size;
    const nn::Linear::Part down{prefix + ".down_proj", config.hidden_size, config.mlp_bias};
    const nn::Range own = nn::share_of_inner(loader, down, whole);
    std::vector<nn::Linear::Part> parts = {{prefix + ".gate_proj", whole, config.mlp_bias},
                                           {prefix + ".up_proj", whole, config.mlp_bias}};
    for (nn::Linear::Part& part : parts) {
      if (own.count < whole) part.taken = {own};
    }
    size_ = own.count;
    gate_up_ = {loader, std::move(parts), config.hidden_size};
    down_ = {loader, {down}, whole, nn::WeightRole::kProjection, nn::Linear::Inputs{own}};
    const double gate = std::get<FalconH1Config>(config.family).mlp_gate;
    if (gate != 1) gate_ = {loader, std::vector<float>(static_cast<size_t>(size_), static_cast<float>(gate))};
  }

  DType input_dtype(const nn::StepContext& step) const override {
    return gate_up_.input_dtype(step, step.batch.num_tokens);
  }
  void operator()(const nn::StepContext& step, const ops::ConstView& x, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View gate_up = step.workspace.take(x.num_rows, 2 * size_);
    const ops::View activated = step.workspace.take(x.num_rows, size_);
    gate_up_(step, x, gate_up);
    if (!gate_.empty()) step.multiply(gate_.data(), gate_up.columns(0, size_));
    step(ops::ActivationArgs{
        .function = function_, .in = gate_up, .num_tokens = x.num_rows, .size = size_, .out = activated});
    down_(step, activated, out);
    scale_values(step, out, output_);
    step.workspace.rewind(mark);
  }

 private:
  int64_t size_ = 0;
  Activation function_;
  float output_;
  nn::Linear gate_up_;
  nn::Linear down_;
  nn::Parameter gate_;  // [size], one number, or empty: 1
};

std::unique_ptr<nn::FeedForward> falcon_mlp(nn::Loader& loader, const std::string& prefix, const ModelConfig& config,
                                            int32_t /*layer*/) {
  return std::make_unique<ScaledMlp>(loader, prefix + "feed_forward", config);
}

std::unique_ptr<nn::SelfAttention> falcon_attention(nn::Loader& loader, const std::string& prefix,
                                                    const ModelConfig& config, int32_t layer) {
  const auto& own = std::get<FalconH1Config>(config.family);
  return std::make_unique<ScaledAttention>(
      std::make_unique<nn::Attention>(loader, prefix + "self_attn", attention_config({}, config, layer)),
      own.attention_input, own.attention_output);
}

std::unique_ptr<nn::SelfAttention> falcon_mamba(nn::Loader& loader, const std::string& prefix,
                                                const ModelConfig& config, int32_t /*layer*/) {
  const auto& own = std::get<FalconH1Config>(config.family);
  return std::make_unique<ScaledAttention>(
      std::make_unique<nn::Mamba2>(
          loader, prefix + "mamba",
          nn::Mamba2Options{.sizes = own.mamba, .hidden_size = config.hidden_size, .norm_eps = config.norm_eps}),
      own.mamba_input, own.mamba_output);
}

// A list of so many numbers; all 1 where there is none.
Result<std::vector<double>> read_multipliers(const ConfigReader& reader, std::string_view key, size_t count) {
  if (!reader.has(key)) return std::vector<double>(count, 1);
  QUIRE_ASSIGN_OR_RETURN(std::vector<double> numbers, reader.numbers(key));
  if (numbers.size() != count) {
    return invalid_argument("config: {} has {} numbers, expected {}", key, numbers.size(), count);
  }
  return numbers;
}

Status read_falcon_mamba(const boost::json::object& config, const ModelConfig& model, Mamba2Config& sizes) {
  constexpr const char* kInner = "mamba_d_ssm";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(int64_t inner_size, reader.integer_or(kInner, 1024, 1, 1 << 24));
  if (reader.mentions(kInner) && !reader.has(kInner)) {
    QUIRE_ASSIGN_OR_RETURN(inner_size, expanded_size(config, model));
  }
  QUIRE_RETURN_IF_ERROR(read_mamba(config, model, inner_size, sizes));
  QUIRE_ASSIGN_OR_RETURN(sizes.output_bias, reader.boolean_or("projectors_bias", false));
  QUIRE_ASSIGN_OR_RETURN(const bool norms, reader.boolean_or("mamba_rms_norm", false));
  QUIRE_ASSIGN_OR_RETURN(const bool before_gate, reader.boolean_or("mamba_norm_before_gate", true));
  sizes.norm = !norms ? MambaNorm::kNone : before_gate ? MambaNorm::kBeforeGate : MambaNorm::kBehindGate;
  QUIRE_ASSIGN_OR_RETURN(sizes.multipliers, read_multipliers(reader, "ssm_multipliers", 5));
  return {};
}

}  // namespace

Result<ModelConfig> read_falcon_h1_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation, {.num_kv_heads = 8, .max_position = 8192, .norm_eps = 1e-5}));
  out.architecture = "FalconH1ForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  QUIRE_ASSIGN_OR_RETURN(out.embedding_scale, reader.number_or("embedding_multiplier", 1));
  QUIRE_ASSIGN_OR_RETURN(out.logits_scale, reader.number_or("lm_head_multiplier", 1));
  // Keys are multiplied before they turn, which the scores cannot tell from a factor of theirs.
  QUIRE_ASSIGN_OR_RETURN(const double key_multiplier, reader.number_or("key_multiplier", 1));
  out.attention_scale *= key_multiplier;
  FalconH1Config own;
  QUIRE_ASSIGN_OR_RETURN(own.attention_input, reader.number_or("attention_in_multiplier", 1));
  QUIRE_ASSIGN_OR_RETURN(own.attention_output, reader.number_or("attention_out_multiplier", 1));
  QUIRE_ASSIGN_OR_RETURN(own.mamba_input, reader.number_or("ssm_in_multiplier", 1));
  QUIRE_ASSIGN_OR_RETURN(own.mamba_output, reader.number_or("ssm_out_multiplier", 1));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<double> mlp, read_multipliers(reader, "mlp_multipliers", 2));
  own.mlp_gate = mlp[0];
  own.mlp_output = mlp[1];
  QUIRE_RETURN_IF_ERROR(read_falcon_mamba(config, out, own.mamba));
  out.family = std::move(own);
  out.recurrent_layers.assign(static_cast<size_t>(out.num_layers), true);
  out.attention_layers = out.recurrent_layers;
  return out;
}

Result<ModelConfig> read_falcon_h1_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  out.architecture = "FalconH1ForCausalLM";
  out.mlp_bias = reader.has_tensor_that_ends_with(".feed_forward.up_proj.bias");
  FalconH1Config own;
  QUIRE_RETURN_IF_ERROR(read_gguf_mamba(reader, own.mamba));
  own.mamba.output_bias = reader.has_tensor_that_ends_with(".mamba.out_proj.bias");
  const bool norms = reader.has_tensor_that_ends_with(".mamba.norm.weight");
  own.mamba.norm = norms ? MambaNorm::kBehindGate : MambaNorm::kNone;
  out.family = std::move(own);
  out.recurrent_layers.assign(static_cast<size_t>(out.num_layers), true);
  out.attention_layers = out.recurrent_layers;
  return out;
}

Result<std::unique_ptr<Model>> build_falcon_h1(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.before_mlp = "pre_ff_layernorm",
                        .after_layers = "final_layernorm",
                        .feed_forward = falcon_mlp,
                        .attention = falcon_attention,
                        .beside_attention = falcon_mamba},
                       config, num_positions, loader);
}

}  // namespace quire::models
