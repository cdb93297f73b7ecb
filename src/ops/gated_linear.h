// The first half of a gated feed-forward block (Shazeer, 2020): out = f(x G^T + b) * (x U^T + c), with G above U in one
// weight. A device may keep the products to itself, or needs memory for them.
#pragma once

#include "ops/linear.h"
#include "types/activation.h"

namespace quire::ops {

struct GatedLinearArgs {
  // weight [2 * size, k]. `out`, [num_rows, 2 * size], is scratch: what it holds afterwards is not said.
  LinearArgs product;
  Activation function = Activation::kSilu;
  OutRows out;  // [num_rows, size], dense
};

void check(const GatedLinearArgs& args);

}  // namespace quire::ops
