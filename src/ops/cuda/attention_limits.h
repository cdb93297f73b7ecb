// Which sequences of a batch are prompts to the kernels of attention, and which are decoded.
#pragma once

#include "ops/paged_attention.h"

namespace quire::ops::cuda {

// Sequences of at most so many queries may be split; those of more may have other kernels.
inline constexpr int kFewQueries = kMostSharedQueries;

}  // namespace quire::ops::cuda
