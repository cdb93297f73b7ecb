// Copies whole blocks of a pool, bytes as they are: within it (sequences that shared a block diverge), or between two
// pools of the same layout (a pool and the pool it is swapped to). What the bytes mean is no matter.
#pragma once

#include <array>
#include <cstdint>

#include "ops/kv_cache.h"
#include "types/ids.h"

namespace quire::ops {

struct BlockCopy {
  BlockId source;
  BlockId destination;
};

// A pool's blocks: each lies in one memory, or its halves in two (a layer's keys and its values).
struct BlockMemory {
  std::array<void*, 2> parts = {};  // the second nullptr: there is one
  int64_t num_blocks = 0;
  int64_t bytes = 0;  // of a block in each memory, where blocks lie one behind the other

  int num_parts() const { return parts[1] == nullptr ? 1 : 2; }
};

// Of a cache whose blocks lie one behind the other.
BlockMemory block_memory(const KvCacheView& cache);

struct CopyBlocksArgs {
  BlockMemory source;
  BlockMemory destination;  // the same memory for copies within a pool
  // [num_copies]: destinations all different; within one pool no destination is a source as well, so that the order
  // of the copies does not matter. A source may be copied several times.
  const BlockCopy* copies = nullptr;
  int64_t num_copies = 0;
};

void check(const CopyBlocksArgs& args);

}  // namespace quire::ops
