// Reads numbers out of config.json with their names and ranges in the errors.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/function_ref.h"
#include "base/status.h"
#include "types/model_config.h"

namespace quire::models {

inline constexpr int64_t kMostPositions = int64_t{1} << 31;
inline constexpr int64_t kMostContext = int64_t{1} << 30;
inline constexpr int64_t kMostHeadDim = 1024;
inline constexpr int64_t kMostExperts = 65536;

class ConfigReader {
 public:
  // The object must outlive the reader.
  explicit ConfigReader(const boost::json::object& config) : config_(config) {}

  bool mentions(std::string_view key) const { return config_.contains(key); }
  bool has(std::string_view key) const;  // present and not null
  // Errors: invalid_argument naming the key, what was found and what was expected.
  Result<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  Result<int64_t> integer_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const;
  Result<double> number_or(std::string_view key, double fallback) const;  // finite
  Result<bool> boolean_or(std::string_view key, bool fallback) const;
  Result<std::string> text_or(std::string_view key, std::string_view fallback) const;
  Result<std::vector<double>> numbers(std::string_view key) const;  // a list of finite ones

 private:
  const boost::json::object& config_;
};

// What a family takes where its configuration is silent: the defaults of the reference's configuration class.
struct ConfigDefaults {
  int64_t num_kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads
  int64_t max_position = 2048;
  std::string_view norm_eps_key = "rms_norm_eps";
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double rotary_share = 1.0;    // of a head
  bool partial_rotary = false;  // whether the reference reads another share
  bool attention_bias = false;
  bool tie_word_embeddings = false;
  // Whether max_position_embeddings counts what the rope's scaling adds: Gemma 3, whose other layers have none.
  bool scaled_context = false;
  std::string_view activation_key = "hidden_act";
  std::string_view activation = "silu";
};

// What all families of one shape with Llama have: sizes, heads, norm, biases, activation, rope, special ids. The
// output projection has a bias where the others have one. Errors: invalid_argument or unimplemented naming the field.
Result<ModelConfig> read_decoder_config(const boost::json::object& config, const boost::json::object& generation,
                                        const ConfigDefaults& defaults);

// The reference's name of an activation. Errors: unimplemented naming those that there are.
Result<Activation> parse_activation(std::string_view name);

// The reference's name of a rope's scaling. Errors: unimplemented naming those that there are.
Result<RopeScaling> parse_rope_scaling(std::string_view type);

// Tokens of context with the rope's scaling, of `stated` ones. Where the trained length is named beside the factor, the
// stated one may be either (Qwen3's card adds YaRN to a configuration that keeps its own, DeepSeek's has the product).
int64_t scaled_context(const RopeConfig& rope, int64_t stated);

// "llama_4_scaling_beta" of the rope, whose trained length is the period.
Status read_query_growth(const boost::json::object& config, ModelConfig& out);

// "rope_parameters" (or the older "rope_theta" and "rope_scaling"), rotary_dim included. REQUIRES: max_position and
// head_dim of `model` are set.
Result<RopeConfig> read_rope(const boost::json::object& config, const ModelConfig& model,
                             const ConfigDefaults& defaults);
// One entry of "rope_parameters" where layers of different types have different ones.
Result<RopeConfig> read_rope_entry(const boost::json::object& entry, const ModelConfig& model,
                                   const ConfigDefaults& defaults);

// The entry of "rope_parameters" of one type of layer, "full_attention" or "sliding_attention". Before there were such
// entries the keys stood alone, and a scaling was the full layers'. `older_key`: of the base frequency then, `theta`
// where there is none.
Result<RopeConfig> read_rope_of_layers(const boost::json::object& config, std::string_view type,
                                       std::string_view older_key, double theta, const ModelConfig& model);

// The configuration with what a family has other keys for under the usual ones, too, where those say nothing.
struct KeyName {
  std::string_view own;
  std::string_view usual;
};
boost::json::object with_usual_keys(const boost::json::object& config, std::span<const KeyName> names);

// That heads are hidden_size over num_attention_heads, in families that know no others.
Status check_even_heads(const ModelConfig& config);

// The configuration of the text model where it is a part of a larger one, "text_config", with the special ids of the
// whole; else the whole.
Result<boost::json::object> text_config(const boost::json::object& config);

// "sliding_window": nothing where it is null, `fallback` where it is absent.
Result<std::optional<int32_t>> read_window(const boost::json::object& config, std::optional<int32_t> fallback = {});
// The windows of the layers: those that "layer_types" calls sliding_attention, or, where it is absent, those for which
// has_window(layer). Errors also for other types of layers.
Status read_layer_windows(const boost::json::object& config, int32_t window, FunctionRef<bool(int32_t)> has_window,
                          ModelConfig& out);

// The window of those layers for which has_window(layer).
void set_layer_windows(int32_t window, FunctionRef<bool(int32_t)> has_window, ModelConfig& out);

// "no_rope_layers" has a 1 for each layer that rotates; where it is absent or empty every "no_rope_layer_interval"-th
// does not.
Status read_unrotated_layers(const ConfigReader& reader, int64_t default_interval, ModelConfig& out);
void set_unrotated_layers(int64_t interval, ModelConfig& out);

// Which layers are recurrent, by the kind of each in the list `key`: [num_layers]. The first names of either kind are
// those that the error tells. REQUIRES: ConfigReader::has(key); names of both.
Result<std::vector<bool>> read_recurrent_layers(const boost::json::object& config, std::string_view key,
                                                int32_t num_layers, std::span<const std::string_view> recurrent,
                                                std::span<const std::string_view> attention);

// "eos_token_id" (an id or a list) of generation_config.json, else of config.json; and
// "bos_token_id".
Status read_special_ids(const boost::json::object& config, const boost::json::object& generation, ModelConfig& out);

}  // namespace quire::models
