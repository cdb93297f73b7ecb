// What the families with layers of Mamba 2 share: the numbers of their configurations and the choice of a layer's kind.
#pragma once

#include <memory>
#include <string>

#include <boost/json.hpp>

#include "models/gguf_reader.h"
#include "models/model.h"
#include "nn/attention.h"

namespace quire::models {

// "mamba_expand" times hidden_size: the numbers of a layer's heads where nothing else says how many they are.
Result<int64_t> expanded_size(const boost::json::object& config, const ModelConfig& model);

// Sizes, biases and "time_step_limit" of layers whose heads make inner_size numbers, by the names that most families
// have. Errors: invalid_argument naming the field; unimplemented for an activation other than silu, which the
// convolution has, too.
Status read_mamba(const boost::json::object& config, const ModelConfig& model, int64_t inner_size, Mamba2Config& sizes);
// "time_step_limit" alone.
Status read_step_limits(const boost::json::object& config, Mamba2Config& sizes);

// The sizes by llama.cpp's names. Errors: those of the reader; invalid_argument for heads and groups that do not fit.
Status read_gguf_mamba(const GgufReader& reader, Mamba2Config& sizes);

// "<prefix>mamba" in recurrent layers, "<prefix>self_attn" in the others: what a DecoderShape asks for. REQUIRES:
// Mamba2Config is the family's where there are recurrent layers.
std::unique_ptr<nn::SelfAttention> mamba_or_attention(nn::Loader& loader, const std::string& prefix,
                                                      const ModelConfig& config, int32_t layer);

}  // namespace quire::models
