// AFM (Arcee AI, 2025): Llama whose feed-forward blocks have no gate, and squared positive parts between their
// matrices.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_arcee_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_arcee_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_arcee(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kArceeFamily{read_arcee_config, build_arcee, read_arcee_gguf};

}  // namespace quire::models
