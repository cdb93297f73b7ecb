#include "ops/adapted_linear.h"

#include "base/check.h"

namespace quire::ops {

void check(const AdaptedLinearArgs& args) {
  const LinearArgs& product = args.product;
  const LowRankArgs& low_rank = args.low_rank;
  check(product);
  check(low_rank);
  QUIRE_CHECK(product.num_rows == low_rank.num_rows);
  if (product.num_rows == 0) return;
  QUIRE_CHECK(low_rank.x == product.x.floats() && low_rank.x_stride == product.x_stride);
  QUIRE_CHECK(low_rank.out == product.out.floats() && low_rank.out_stride == product.out_stride);
  QUIRE_CHECK(low_rank.out_features == product.weight->rows());
}

}  // namespace quire::ops
