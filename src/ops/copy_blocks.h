// Copies whole blocks of one layer's paged cache, bytes as they are: within a cache (sequences that shared a block
// diverge), or between two caches of the same geometry (a pool and the pool it is swapped to).
#pragma once

#include <cstdint>

#include "ops/kv_cache.h"
#include "types/ids.h"

namespace quire::ops {

struct BlockCopy {
  BlockId source;
  BlockId destination;
};

struct CopyBlocksArgs {
  KvCacheView source;
  KvCacheView destination;  // the same view for copies within a cache
  // [num_copies]: destinations all different; within one cache no destination is a source as well, so that the order
  // of the copies does not matter. A source may be copied several times.
  const BlockCopy* copies = nullptr;
  int64_t num_copies = 0;
};

void check(const CopyBlocksArgs& args);

}  // namespace quire::ops
