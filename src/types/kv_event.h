// What happens to the prefix cache, for who routes requests to where their beginnings are: as vLLM tells it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "types/ids.h"

namespace quire {

struct KvCacheEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  enum class Medium : uint8_t { kPool, kHostMemory };

  Kind kind = Kind::kStored;
  Medium medium = Medium::kPool;
  // A number for each block, of all the text up to its end and its context: the same for the same text as long as the
  // process lives. Of kStored they follow each other.
  std::vector<uint64_t> hashes;
  // Of kStored:
  std::optional<uint64_t> parent;  // of the block before the first; none: it begins the text
  std::vector<TokenId> tokens;     // of one block after the other
  int32_t adapter = 0;             // by its number; 0: none
  std::string adapter_name;        // filled in by who knows names
  std::string salt;                // of the request's cache_salt
};

}  // namespace quire
