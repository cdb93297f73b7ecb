// A feed-forward block of two matrices as a DecoderShape asks for it.
#pragma once

#include <memory>
#include <string>

#include "nn/mlp.h"
#include "types/model_config.h"

namespace quire::models {

// `in`, `out`: names behind `prefix`. size: of what is between them; 0: intermediate_size.
inline std::unique_ptr<nn::FeedForward> plain_mlp(nn::Loader& loader, const std::string& prefix,
                                                  const ModelConfig& config, const char* in, const char* out,
                                                  int64_t size = 0) {
  return std::make_unique<nn::PlainMlp>(
      loader, nn::Linear::Part{prefix + in, size > 0 ? size : config.intermediate_size, config.mlp_bias},
      nn::Linear::Part{prefix + out, config.hidden_size, config.mlp_bias}, config.activation);
}

// "mlp.up_proj" and "mlp.down_proj".
inline std::unique_ptr<nn::FeedForward> up_and_down(nn::Loader& loader, const std::string& prefix,
                                                    const ModelConfig& config, int32_t /*layer*/) {
  return plain_mlp(loader, prefix, config, "mlp.up_proj", "mlp.down_proj");
}

}  // namespace quire::models
