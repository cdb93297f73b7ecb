#include "ops/copy_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace quire::ops {

void check(const CopyBlocksArgs& args) {
  const KvCacheView& from = args.source;
  const KvCacheView& to = args.destination;
  check(from);
  check(to);
  QUIRE_CHECK_MSG(
      from.dtype == to.dtype && from.values_are_keys == to.values_are_keys && from.num_kv_heads == to.num_kv_heads &&
          from.head_dim == to.head_dim && from.block_size == to.block_size,
      fmt::format("blocks of {} {} x {} x {} copied to blocks of {} {} x {} x {}", name(from.dtype), from.num_kv_heads,
                  from.head_dim, from.block_size, name(to.dtype), to.num_kv_heads, to.head_dim, to.block_size));
  QUIRE_CHECK_MSG(from.values_are_keys || (from.keys == to.keys) == (from.values == to.values),
                  "keys of one cache, values of another");
  QUIRE_CHECK_MSG(args.num_copies >= 0, fmt::format("num_copies is {}", args.num_copies));
  if (args.num_copies == 0) return;
  QUIRE_CHECK(args.copies != nullptr && from.keys != nullptr && to.keys != nullptr);
  QUIRE_CHECK(from.values_are_keys || (from.values != nullptr && to.values != nullptr));

  std::vector<BlockId> destinations;
  for (int64_t i = 0; i < args.num_copies; ++i) {
    const BlockCopy& copy = args.copies[i];
    QUIRE_CHECK_MSG(copy.source >= 0 && copy.source < from.num_blocks,
                    fmt::format("copy {} is of block {}, its cache has {}", i, copy.source, from.num_blocks));
    QUIRE_CHECK_MSG(copy.destination >= 0 && copy.destination < to.num_blocks,
                    fmt::format("copy {} is to block {}, its cache has {}", i, copy.destination, to.num_blocks));
    destinations.push_back(copy.destination);
  }
  std::sort(destinations.begin(), destinations.end());
  const auto twice = std::adjacent_find(destinations.begin(), destinations.end());
  QUIRE_CHECK_MSG(twice == destinations.end(), fmt::format("two copies are to block {}", *twice));
  if (from.keys != to.keys) return;
  for (int64_t i = 0; i < args.num_copies; ++i) {
    QUIRE_CHECK_MSG(
        !std::binary_search(destinations.begin(), destinations.end(), args.copies[i].source),
        fmt::format("block {} is the source of copy {} and the destination of another", args.copies[i].source, i));
  }
}

}  // namespace quire::ops
