// The small integers that name things across folders and threads.
#pragma once

#include <cstdint>

namespace quire {

using TokenId = int32_t;
using BlockId = int32_t;      // index of a physical KV block, [0, num_blocks)
using SequenceId = uint64_t;  // never reused within one engine
inline constexpr TokenId kNoToken = -1;

}  // namespace quire
