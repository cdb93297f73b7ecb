// BERT (Devlin et al., 2019) and what shares its shape: RoBERTa (Liu et al., 2019) and XLM-RoBERTa (Conneau et al.,
// 2020), whose positions begin at 2; Nomic BERT (Nussbaum et al., 2024), which rotates queries and keys and has a gated
// feed-forward block. Every token sees the whole text; layer norms stand behind the blocks.
//
// Keys and values are of no use once a layer is done: all layers write to the batch's one cache layer in turn.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_bert_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_roberta_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_nomic_bert_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_bert_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_bert(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);
Result<std::unique_ptr<Model>> build_roberta(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);
Result<std::unique_ptr<Model>> build_nomic_bert(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kBertFamily{read_bert_config, build_bert, read_bert_gguf, FamilyRole::kStates};
inline constexpr Family kRobertaFamily{read_roberta_config, build_roberta, nullptr, FamilyRole::kStates};
inline constexpr Family kNomicBertFamily{read_nomic_bert_config, build_nomic_bert, read_bert_gguf, FamilyRole::kStates};

}  // namespace quire::models
