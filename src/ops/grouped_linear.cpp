#include "ops/grouped_linear.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const GroupedLinearArgs& args) {
  QUIRE_CHECK(args.weights != nullptr && args.num_rows >= 0);
  const PackedMatrix& first = (*args.weights)[0];
  QUIRE_CHECK_MSG(args.offsets != nullptr || args.num_rows % args.weights->size() == 0,
                  fmt::format("{} rows in {} equal groups", args.num_rows, args.weights->size()));
  if (args.num_rows == 0) return;
  QUIRE_CHECK_MSG(args.x_stride >= first.columns() && args.out_stride >= first.rows() &&
                      (args.bias == nullptr || args.bias_stride >= first.rows()),
                  fmt::format("x_stride {}, out_stride {}, bias_stride {} for weights [{}, {}]", args.x_stride,
                              args.out_stride, args.bias_stride, first.rows(), first.columns()));
  QUIRE_CHECK(args.x != nullptr && args.out != nullptr);
}

void check_offsets(const GroupedLinearArgs& args) {
  const int32_t groups = args.weights->size();
  for (int32_t g = 0; g < groups; ++g) {
    QUIRE_CHECK_MSG(first_row(args, g) <= first_row(args, g + 1),
                    fmt::format("offsets fall at {}: {} to {}", g, first_row(args, g), first_row(args, g + 1)));
  }
  QUIRE_CHECK_MSG(first_row(args, 0) >= 0, fmt::format("offsets begin at {}", first_row(args, 0)));
  QUIRE_CHECK_MSG(first_row(args, groups) <= args.num_rows,
                  fmt::format("offsets end at {}, num_rows is {}", first_row(args, groups), args.num_rows));
}

}  // namespace quire::ops
