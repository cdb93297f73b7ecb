// The small integers that name things across folders and threads.
#pragma once

#include <cstdint>

namespace quire {

using TokenId = int32_t;
using BlockId = int32_t;      // index of a physical KV block, [0, num_blocks)
using SwapSlot = int32_t;     // index of a block's place in the second pool, [0, num_swap_blocks)
using SequenceId = uint64_t;  // never reused within one engine
inline constexpr TokenId kNoToken = -1;
inline constexpr BlockId kNoBlock = -1;

}  // namespace quire
