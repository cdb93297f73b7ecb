#include "ops/scale.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const ScaleArgs& args) {
  QUIRE_CHECK_MSG(args.num_rows >= 0 && args.size > 0, fmt::format("num_rows {}, size {}", args.num_rows, args.size));
  QUIRE_CHECK_MSG(args.soft_cap >= 0, fmt::format("soft_cap is {}", args.soft_cap));
  QUIRE_CHECK_MSG(args.limit >= 0, fmt::format("limit is {}", args.limit));
  if (args.num_rows == 0) return;
  QUIRE_CHECK(args.values != nullptr);
}

}  // namespace quire::ops
