// The weights of short convolutions (ops/short_conv.h).
#pragma once

#include <string>
#include <vector>

#include "nn/loader.h"

namespace quire::nn {

// A convolution of `channels`, each by itself, over `kernel` tokens, stored as [channels, 1, kernel] or, as GGUF leaves
// out the dimension of one, [channels, kernel]: its weights token by token, [kernel, channels of `taken`]. Empty when
// planning.
std::vector<float> conv_taps(Loader& loader, const std::string& name, int64_t channels, int64_t kernel,
                             const std::vector<Range>& taken);

}  // namespace quire::nn
