#include "ops/grouped_linear.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const GroupedLinearArgs& args) {
  QUIRE_CHECK(args.num_groups > 0 && args.rows_per_group >= 0 && args.weights != nullptr);
  const PackedMatrix& first = *args.weights[0];
  for (int32_t g = 0; g < args.num_groups; ++g) {
    const PackedMatrix& weight = *args.weights[g];
    QUIRE_CHECK_MSG(
        weight.dtype() == first.dtype() && weight.rows() == first.rows() && weight.columns() == first.columns(),
        fmt::format("weight {} is {} [{}, {}], weight 0 {} [{}, {}]", g, name(weight.dtype()), weight.rows(),
                    weight.columns(), name(first.dtype()), first.rows(), first.columns()));
    QUIRE_CHECK_MSG(first_row(args, g) <= first_row(args, g + 1),
                    fmt::format("offsets fall at {}: {} to {}", g, first_row(args, g), first_row(args, g + 1)));
  }
  QUIRE_CHECK_MSG(first_row(args, 0) == 0, fmt::format("offsets begin at {}", first_row(args, 0)));
  if (first_row(args, args.num_groups) == 0) return;
  QUIRE_CHECK_MSG(args.x_stride >= first.columns() && args.out_stride >= first.rows() &&
                      (args.bias == nullptr || args.bias_stride >= first.rows()),
                  fmt::format("x_stride {}, out_stride {}, bias_stride {} for weights [{}, {}]", args.x_stride,
                              args.out_stride, args.bias_stride, first.rows(), first.columns()));
  QUIRE_CHECK(args.x != nullptr && args.out != nullptr);
}

}  // namespace quire::ops
