#include "ops/linear.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const LinearArgs& args) {
  QUIRE_CHECK(args.weight != nullptr);
  const int64_t rows = args.weight->rows();
  const int64_t columns = args.weight->columns();
  QUIRE_CHECK_MSG(args.num_rows >= 0, fmt::format("num_rows is {}", args.num_rows));
  if (args.num_rows == 0) return;
  QUIRE_CHECK_MSG(
      args.num_rows == 1 || (args.x_stride >= columns && args.out_stride >= rows),
      fmt::format("x_stride {}, out_stride {} for a weight [{}, {}]", args.x_stride, args.out_stride, rows, columns));
  QUIRE_CHECK(args.x.data != nullptr && args.out.data != nullptr);
  QUIRE_CHECK_MSG(is_input_format(args.x.dtype) && is_row_format(args.out.dtype),
                  fmt::format("{} to {}", name(args.x.dtype), name(args.out.dtype)));
  QUIRE_CHECK_MSG(is_row_format(args.x.dtype) || (may_be_coded(columns) && args.x_stride == columns),
                  fmt::format("rows of {}, {} of {} numbers", name(args.x.dtype), columns, args.x_stride));
}

}  // namespace quire::ops
