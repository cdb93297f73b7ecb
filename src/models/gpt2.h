// GPT-2 (Radford et al., 2019): layer norms with biases, learned positions, a plain feed-forward block. GPTBigCode
// (SantaCoder and StarCoder; Li et al., 2023): the same with one head of keys and matrices that are not transposed.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_gpt2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_gpt2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_gpt_bigcode_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_gpt_bigcode_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_gpt2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGpt2Family{read_gpt2_config, build_gpt2, read_gpt2_gguf};
inline constexpr Family kGptBigCodeFamily{read_gpt_bigcode_config, build_gpt2, read_gpt_bigcode_gguf};

}  // namespace quire::models
