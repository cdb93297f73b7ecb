#include "ops/embedding.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const EmbeddingArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0, fmt::format("num_tokens is {}", args.num_tokens));
  QUIRE_CHECK_MSG(args.table.shape.rank() == 2,
                  fmt::format("the table is {}, not [vocab_size, hidden_size]", args.table.shape.to_string()));
  const int64_t block = info(args.table.dtype).block_values;
  QUIRE_CHECK_MSG(args.table.shape[1] % block == 0,
                  fmt::format("hidden_size {} is no multiple of the {} values of a {} block", args.table.shape[1],
                              block, name(args.table.dtype)));
  const int64_t row = row_bytes(args.table.dtype, args.table.shape[1]);
  QUIRE_CHECK_MSG(row_stride(args) >= row,
                  fmt::format("row_stride {} is under the {} bytes of a row", args.row_stride, row));
  if (args.num_tokens == 0) return;
  QUIRE_CHECK(args.ids.device != nullptr && args.table.data != nullptr && args.out != nullptr);
  QUIRE_CHECK_MSG(args.is_part || args.first_id == 0, "a whole table begins with id 0");
  if (args.ids.host == nullptr || args.is_part) return;
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    QUIRE_CHECK_MSG(args.ids.host[t] >= 0 && args.ids.host[t] < args.table.shape[0],
                    fmt::format("ids[{}] is {}, the table has {} rows", t, args.ids.host[t], args.table.shape[0]));
  }
}

}  // namespace quire::ops
