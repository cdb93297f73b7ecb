// Which sequences of a batch are prompts to the kernels of attention, and which are decoded.
#pragma once

namespace quire::ops::cuda {

// Sequences of at most so many queries may be split; those of more may have other kernels.
inline constexpr int kFewQueries = 8;

}  // namespace quire::ops::cuda
