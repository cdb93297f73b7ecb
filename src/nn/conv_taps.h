// The small parameters of recurrent layers: weights of short convolutions (ops/short_conv.h), and what a rank has of
// vectors.
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

// One number a head, which GGUF files may have as a column.
std::vector<float> of_heads(Loader& loader, const std::string& name, int64_t num_heads);

// The rates of a recurrence (ops/recurrence.h) of the heads in `taken`: "<prefix>.A_log", of which they are -e^A_log,
// or as GGUF has them "<prefix>.A".
std::vector<float> recurrence_rates(Loader& loader, const std::string& prefix, int64_t num_heads,
                                    const std::vector<Range>& taken);

// Those of `values` that lie in the ranges, one behind the other. None of none, when planning.
std::vector<float> taken_of(const std::vector<float>& values, const std::vector<Range>& ranges);

}  // namespace quire::nn
