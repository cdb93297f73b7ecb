// ModernBERT (Warner et al., 2024): layer norms before the blocks, rotated queries and keys, a gated feed-forward
// block, and layers that see so many tokens each way between those that see the whole text. Like BERT it keeps one
// cache layer.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_modern_bert_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_modern_bert(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kModernBertFamily{read_modern_bert_config, build_modern_bert, nullptr, FamilyRole::kStates};

}  // namespace quire::models
