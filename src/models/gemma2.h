// Gemma 2 (Gemma Team, 2024): norms on both sides of the blocks, soft caps, every other layer with a window.
#pragma once

#include "models/config_reader.h"
#include "models/gguf_reader.h"
#include "models/model.h"

namespace quire::models {

// What Gemma 2 and 3 have in common.
Result<ModelConfig> read_gemma_config(const boost::json::object& config, const boost::json::object& generation,
                                      int64_t default_max_position);
// The same of a GGUF file. The largest model, of so many layers, scales its scores otherwise.
Result<ModelConfig> read_gemma_gguf(const GgufReader& reader, int32_t layers_of_the_largest);
// A soft cap: `fallback` where it is absent.
Result<double> read_gguf_soft_cap(const GgufReader& reader, std::string_view key, double fallback);
Result<ModelConfig> read_gemma2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_gemma2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_gemma2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGemma2Family{read_gemma2_config, build_gemma2, read_gemma2_gguf};

}  // namespace quire::models
