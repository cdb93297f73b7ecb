#include "ops/gated_linear.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const GatedLinearArgs& args) {
  check(args.product);
  const int64_t rows = args.product.weight->rows();
  QUIRE_CHECK_MSG(rows % 2 == 0, fmt::format("{} rows of gate and up", rows));
  if (args.product.num_rows == 0) return;
  QUIRE_CHECK_MSG(args.product.out_stride == rows,
                  fmt::format("out_stride {} for {} rows", args.product.out_stride, rows));
  QUIRE_CHECK(args.out.data != nullptr && is_input_format(args.out.dtype));
}

}  // namespace quire::ops
