#include "ops/copy_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace quire::ops {

BlockMemory block_memory(const KvCacheView& cache) {
  QUIRE_CHECK_MSG(block_stride(cache) == block_bytes(cache),
                  fmt::format("blocks of {} B lie {} B apart", block_bytes(cache), cache.stride));
  return {.parts = {cache.keys, cache.values}, .num_blocks = cache.num_blocks, .bytes = block_bytes(cache)};
}

void check(const CopyBlocksArgs& args) {
  const BlockMemory& from = args.source;
  const BlockMemory& to = args.destination;
  QUIRE_CHECK_MSG(from.bytes == to.bytes && from.num_parts() == to.num_parts(),
                  fmt::format("blocks of {} x {} B copied to blocks of {} x {} B", from.num_parts(), from.bytes,
                              to.num_parts(), to.bytes));
  QUIRE_CHECK_MSG(from.num_blocks >= 0 && to.num_blocks >= 0 && from.bytes > 0,
                  fmt::format("{} and {} blocks of {} B", from.num_blocks, to.num_blocks, from.bytes));
  QUIRE_CHECK_MSG(from.num_parts() == 1 || (from.parts[0] == to.parts[0]) == (from.parts[1] == to.parts[1]),
                  "the first half of one pool, the second of another");
  QUIRE_CHECK_MSG(args.num_copies >= 0, fmt::format("num_copies is {}", args.num_copies));
  if (args.num_copies == 0) return;
  QUIRE_CHECK(args.copies != nullptr && from.parts[0] != nullptr && to.parts[0] != nullptr);

  std::vector<BlockId> destinations;
  for (int64_t i = 0; i < args.num_copies; ++i) {
    const BlockCopy& copy = args.copies[i];
    QUIRE_CHECK_MSG(copy.source >= 0 && copy.source < from.num_blocks,
                    fmt::format("copy {} is of block {}, its pool has {}", i, copy.source, from.num_blocks));
    QUIRE_CHECK_MSG(copy.destination >= 0 && copy.destination < to.num_blocks,
                    fmt::format("copy {} is to block {}, its pool has {}", i, copy.destination, to.num_blocks));
    destinations.push_back(copy.destination);
  }
  std::sort(destinations.begin(), destinations.end());
  const auto twice = std::adjacent_find(destinations.begin(), destinations.end());
  QUIRE_CHECK_MSG(twice == destinations.end(), fmt::format("two copies are to block {}", *twice));
  if (from.parts[0] != to.parts[0]) return;
  for (int64_t i = 0; i < args.num_copies; ++i) {
    QUIRE_CHECK_MSG(
        !std::binary_search(destinations.begin(), destinations.end(), args.copies[i].source),
        fmt::format("block {} is the source of copy {} and the destination of another", args.copies[i].source, i));
  }
}

}  // namespace quire::ops
