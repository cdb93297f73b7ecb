// Blocks of the prefix cache on their way from one instance to another (docs/transfer.md), as bytes: who computed a
// prompt sends them, who goes on from it takes them into its own host memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "types/ids.h"

namespace quire {

// Which keys and values a block holds: of tokens [index, index + 1) * block_size of the text, of one group of layers.
struct KvBlockPlace {
  int32_t index = 0;
  int32_t group = 0;
  bool operator==(const KvBlockPlace&) const = default;
};

// A beginning of a text. A group of layers with a window has only the blocks that going on from the end reads.
struct KvPrefix {
  std::vector<TokenId> tokens;       // all of them, whole blocks
  bool is_long = false;              // how its keys are rotated (kv::CacheContext)
  std::vector<KvBlockPlace> places;  // rising by (index, group)
  std::vector<std::string> blocks;   // [places], block_bytes each
};

}  // namespace quire
