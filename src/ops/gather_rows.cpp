#include "ops/gather_rows.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const GatherRowsArgs& args) {
  QUIRE_CHECK_MSG(args.size >= 0 && args.num_rows >= 0, fmt::format("size {}, num_rows {}", args.size, args.num_rows));
  if (args.num_rows == 0 || args.size == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.rows.device != nullptr && args.out != nullptr);
  if (args.rows.host == nullptr) return;
  for (int64_t i = 0; i < args.num_rows; ++i) {
    QUIRE_CHECK_MSG(args.rows.host[i] >= 0, fmt::format("rows[{}] is {}", i, args.rows.host[i]));
  }
}

}  // namespace quire::ops
