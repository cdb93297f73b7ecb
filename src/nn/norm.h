// RMSNorm with its weight.
#pragma once

#include <string>
#include <vector>

#include "nn/loader.h"

namespace quire::nn {

class RmsNorm {
 public:
  RmsNorm() = default;
  // Parameter "<prefix>.weight" [size].
  RmsNorm(Loader& loader, const std::string& prefix, int64_t size, double eps)
      : size_(size), eps_(static_cast<float>(eps)), weight_(loader.vector(prefix + ".weight", size)) {}

  // hidden += delta (if given); out = norm(hidden). All [num_tokens, size].
  void operator()(ops::Backend& backend, float* hidden, const float* delta, int64_t num_tokens, float* out) const {
    backend(ops::RmsNormArgs{.hidden = hidden,
                             .delta = delta,
                             .weight = weight_.data(),
                             .eps = eps_,
                             .num_tokens = num_tokens,
                             .size = size_,
                             .out = out});
  }

 private:
  int64_t size_ = 0;
  float eps_ = 0;
  std::vector<float> weight_;
};

}  // namespace quire::nn
