// Weights of convolutions of each channel by itself (ops/short_conv.h), as checkpoints have them.
#pragma once

#include <string>
#include <vector>

#include "nn/loader.h"

namespace quire::nn {

// "<name>", stored as [num_channels, 1, kernel], or without the dimension of one as GGUF does, turned to
// [kernel, channels of `own`]. Empty while planning. Errors go to the loader.
std::vector<float> conv_taps(Loader& loader, const std::string& name, int64_t num_channels, int64_t kernel,
                             const std::vector<Range>& own);

}  // namespace quire::nn
