// A product and what adapters add to it, of the same rows x to the same `out`. A device may work on both at once: the
// product of many rows leaves memory idle, which many adapters' factors wait for.
#pragma once

#include "ops/linear.h"
#include "ops/low_rank.h"

namespace quire::ops {

// Each output has the bits that LinearArgs and then LowRankArgs give it.
struct AdaptedLinearArgs {
  LinearArgs product;    // of floats, to floats
  LowRankArgs low_rank;  // x, num_rows, out and the strides are the product's, out_features the weight's rows
};

void check(const AdaptedLinearArgs& args);

}  // namespace quire::ops
