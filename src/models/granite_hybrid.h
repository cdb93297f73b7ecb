// Granite 4 (IBM, 2025): layers of Mamba 2 and of attention, without positions or with them, and a dense block beside
// experts, or alone. Granite with shared experts is the same with attention alone.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_granite_hybrid_config(const boost::json::object& config,
                                               const boost::json::object& generation);
Result<ModelConfig> read_granite_shared_config(const boost::json::object& config,
                                               const boost::json::object& generation);
Result<ModelConfig> read_granite_hybrid_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_granite_hybrid(const ModelConfig& config, int64_t num_positions,
                                                    nn::Loader& loader);

inline constexpr Family kGraniteHybridFamily{read_granite_hybrid_config, build_granite_hybrid,
                                             read_granite_hybrid_gguf};
inline constexpr Family kGraniteSharedFamily{read_granite_shared_config, build_granite_hybrid};

}  // namespace quire::models
