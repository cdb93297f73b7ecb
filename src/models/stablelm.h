// StableLM (Bellagente et al., 2024; Tow et al., 2023): layer norms around Llama's blocks, which may stand side by
// side; of the 12B layer norms of the heads of queries and keys.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_stablelm_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_stablelm_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_stablelm(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kStableLmFamily{read_stablelm_config, build_stablelm, read_stablelm_gguf};

}  // namespace quire::models
