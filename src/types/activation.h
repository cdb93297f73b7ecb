// The functions between the two matrices of a feed-forward block, and of gates.
#pragma once

#include <cstdint>

namespace quire {

enum class Activation : uint8_t {
  kSilu,       // x / (1 + e^-x)
  kGelu,       // x Phi(x), Phi the normal distribution's (Hendrycks and Gimpel, 2016)
  kGeluTanh,   // the same with Phi approximated by a tanh: "gelu_new", "gelu_pytorch_tanh"
  kQuickGelu,  // x / (1 + e^-1.702x)
  kRelu,       // max(x, 0)
  kRelu2,      // max(x, 0)^2 (So et al., 2021)
  kSigmoid,    // 1 / (1 + e^-x), of gates
  kIdentity,   // x, of gates
};

}  // namespace quire
