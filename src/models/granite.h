// Granite 3 (IBM, 2024): Llama with multipliers of embeddings, scores, residuals and logits.
#pragma once

#include "models/gguf_reader.h"
#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_granite_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_granite_gguf(const checkpoint::Checkpoint& checkpoint);
// What files of all of Granite's kinds say of the numbers that it multiplies by.
Result<ModelConfig> read_granite_gguf_numbers(const GgufReader& reader, const GgufDecoder& decoder);

inline constexpr Family kGraniteFamily{read_granite_config, build_llama, read_granite_gguf};

}  // namespace quire::models
