// Mistral (Jiang et al., 2023): Llama with a sliding window on every layer where the configuration has one, or on those
// that it names. Ministral 3 (Mistral AI, 2025): queries behind the trained length are scaled by their positions.
// Either may be the text model of a larger one.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_mistral_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_ministral3_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_ministral3_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_mistral3_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_mistral3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kMistralFamily{read_mistral_config, build_llama};
inline constexpr Family kMinistral3Family{read_ministral3_config, build_llama, read_ministral3_gguf};
inline constexpr Family kMistral3Family{read_mistral3_config, build_mistral3};

}  // namespace quire::models
