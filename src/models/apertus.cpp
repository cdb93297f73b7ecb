#include "models/apertus.h"

#include <cmath>
#include <utility>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "nn/mlp.h"

namespace quire::models {
namespace {

using Numbers = ApertusConfig::Numbers;

double softplus(double x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// A layer's numbers as its tensors have them; zeros when planning, where nothing is computed.
Numbers stored_numbers(nn::Loader& loader, const std::string& prefix) {
  const auto one = [&](const char* name) {
    const std::vector<float> stored = loader.vector(prefix + "mlp.act_fn." + name, 1);
    return stored.empty() ? 0.0 : static_cast<double>(stored[0]);
  };
  Numbers numbers{.alpha_p = one("alpha_p"), .alpha_n = one("alpha_n"), .beta = one("beta"), .eps = one("eps")};
  for (const double number : {numbers.alpha_p, numbers.alpha_n, numbers.beta, numbers.eps}) {
    if (std::isfinite(number)) continue;
    loader.fail(invalid_argument("tensors \"{}mlp.act_fn.*\" hold {}, expected finite numbers", prefix, number));
  }
  return numbers;
}

std::unique_ptr<nn::FeedForward> build_apertus_mlp(nn::Loader& loader, const std::string& prefix,
                                                   const ModelConfig& config, int32_t layer) {
  const auto& own = std::get<ApertusConfig>(config.family);
  std::optional<nn::Xielu> xielu;
  if (own.is_xielu) {
    const Numbers numbers =
        own.numbers.empty() ? stored_numbers(loader, prefix) : own.numbers[static_cast<size_t>(layer)];
    xielu = nn::Xielu{.positive = static_cast<float>(softplus(numbers.alpha_p)),
                      .negative = static_cast<float>(numbers.beta + softplus(numbers.alpha_n)),
                      .beta = static_cast<float>(numbers.beta),
                      .eps = static_cast<float>(numbers.eps)};
  }
  return std::make_unique<nn::PlainMlp>(loader, nn::Linear::Part{prefix + "mlp.up_proj", config.intermediate_size},
                                        nn::Linear::Part{prefix + "mlp.down_proj", config.hidden_size},
                                        config.activation, /*is_sum=*/true, xielu);
}

// A list of a number for each layer, or one for all.
Status read_gguf_numbers(const GgufReader& reader, std::string_view key, double Numbers::*field, ApertusConfig& out) {
  std::vector<float> all;
  if (reader.metadata().is_array(key)) {
    QUIRE_ASSIGN_OR_RETURN(auto found, reader.metadata().floats(key));
    if (found) all = *std::move(found);
  } else {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<double> found, reader.metadata().number(key));
    if (found) all.assign(out.numbers.size(), static_cast<float>(*found));
  }
  if (all.size() != out.numbers.size()) {
    return data_loss("metadata \"{}\" has {} numbers, expected one for each of the {} layers", key, all.size(),
                     out.numbers.size());
  }
  for (size_t layer = 0; layer < all.size(); ++layer) {
    if (!std::isfinite(all[layer]))
      return invalid_argument("metadata \"{}\" holds {}, expected finite numbers", key, all[layer]);
    out.numbers[layer].*field = all[layer];
  }
  return {};
}

}  // namespace

Result<ModelConfig> read_apertus_config(const boost::json::object& config, const boost::json::object& generation) {
  boost::json::object complete = config;
  const ConfigReader reader(config);
  if (!reader.has("rope_parameters") && !reader.has("rope_scaling")) {
    complete["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 1.2e7},
                                   {"factor", 8.0},           {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  }
  QUIRE_ASSIGN_OR_RETURN(const std::string activation, reader.text_or("hidden_act", "xielu"));
  ApertusConfig own{.is_xielu = activation == "xielu"};
  if (own.is_xielu) complete["hidden_act"] = "relu2";  // which is not computed
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(complete, generation, {.max_position = 65536, .norm_eps = 1e-5, .rope_theta = 1.2e7}));
  out.architecture = "ApertusForCausalLM";
  out.family = own;
  return out;
}

Result<ModelConfig> read_apertus_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.activation = Activation::kRelu2}));
  out.architecture = "ApertusForCausalLM";
  ApertusConfig own;
  own.numbers.resize(static_cast<size_t>(out.num_layers));
  QUIRE_RETURN_IF_ERROR(read_gguf_numbers(reader, "xielu.alpha_p", &Numbers::alpha_p, own));
  QUIRE_RETURN_IF_ERROR(read_gguf_numbers(reader, "xielu.alpha_n", &Numbers::alpha_n, own));
  QUIRE_RETURN_IF_ERROR(read_gguf_numbers(reader, "xielu.beta", &Numbers::beta, own));
  QUIRE_RETURN_IF_ERROR(read_gguf_numbers(reader, "xielu.eps", &Numbers::eps, own));
  out.family = std::move(own);
  return out;
}

Result<std::unique_ptr<Model>> build_apertus(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.before_attention = "attention_layernorm",
                        .before_mlp = "feedforward_layernorm",
                        .qk_norm = nn::QkNorm::kHead,
                        .feed_forward = build_apertus_mlp},
                       config, num_positions, loader);
}

}  // namespace quire::models
