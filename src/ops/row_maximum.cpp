#include "ops/row_maximum.h"

#include <fmt/format.h>

#include <limits>

#include "base/check.h"

namespace quire::ops {

void check(const RowMaximumArgs& args) {
  QUIRE_CHECK_MSG(args.num_rows >= 0 && args.size > 0 && args.size <= std::numeric_limits<int32_t>::max(),
                  fmt::format("num_rows {}, size {}", args.num_rows, args.size));
  if (args.num_rows == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.indices != nullptr);
}

int32_t index_of_largest(const float* row, int64_t size) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float largest = -kInfinity;
  int32_t index = -1;
  for (int64_t i = 0; i < size; ++i) {
    if (!(row[i] < kInfinity)) return -1;
    if (row[i] > largest) {
      largest = row[i];
      index = static_cast<int32_t>(i);
    }
  }
  return index;
}

}  // namespace quire::ops
