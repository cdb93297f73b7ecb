// Blocks of the prefix cache beyond the pool: in host memory (slots) and on disk (stored blocks). kv/ decides by ids
// what is copied, written, read and forgotten; whoever has the memory and the files (runner/) does it. Copies between
// pool and slots are part of a step and travel in its plan; what moves between slots and the disk goes on beside the
// steps, as orders, and is reported when it is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "types/ids.h"

namespace quire {

using OffloadSlot = int32_t;     // a block's place in host memory, [0, num_offload_slots)
using StoredBlockId = uint64_t;  // a block on disk; 0: none; never reused within a process
inline constexpr OffloadSlot kNoOffloadSlot = -1;
inline constexpr size_t kLongestStoredSalt = 256;  // bytes; what has a longer one is not written to disk

// Between the pool and host memory.
struct OffloadCopy {
  BlockId block = kNoBlock;
  OffloadSlot slot = kNoOffloadSlot;
};

// What a block on disk holds: the keys and values of `tokens` behind the text that `parent` stands for, of one group of
// layers. Texts are numbered: a node's number is that of all tokens from the beginning to the end of its own.
struct StoredText {
  uint64_t node = 0;    // over 0
  uint64_t parent = 0;  // 0: these tokens are the beginning
  std::string salt;     // of the context, as is_long
  bool is_long = false;
  int32_t group = 0;
  std::vector<TokenId> tokens;  // block_size of them
};

struct StoredBlock {
  StoredBlockId id = 0;
  StoredText text;
};

struct OffloadWrite {
  OffloadSlot slot = kNoOffloadSlot;
  StoredBlock block;
};
struct OffloadFetch {
  StoredBlockId id = 0;
  OffloadSlot slot = kNoOffloadSlot;
};

// To and from another instance (docs/transfer.md): a slot's bytes, beside the steps. Ids are of the tiers, over 0.
struct OffloadExport {
  uint64_t id = 0;
  OffloadSlot slot = kNoOffloadSlot;
};
struct OffloadImport {
  uint64_t id = 0;
  OffloadSlot slot = kNoOffloadSlot;
  std::string bytes;  // block_bytes of them
};

// A slot that is named here is nobody else's until the report names it. Carried out in their order, reads before
// writes that still wait.
struct OffloadOrders {
  bool clear = false;  // before the others: forget all that is stored
  std::vector<OffloadFetch> fetches;
  std::vector<OffloadWrite> writes;
  std::vector<OffloadExport> exports;
  std::vector<OffloadImport> imports;
  bool empty() const { return !clear && fetches.empty() && writes.empty() && exports.empty() && imports.empty(); }
};

// What came of orders; every one of them is reported once, in no order.
struct OffloadReports {
  struct Done {
    StoredBlockId id = 0;
    bool ok = false;  // of a fetch that failed, the block is gone for good
  };
  struct Exported {
    uint64_t id = 0;
    std::string bytes;
  };
  std::vector<Done> fetched;
  std::vector<Done> written;
  std::vector<StoredBlockId> dropped;  // gone from the disk to make room, or by age
  std::vector<Exported> exported;
  std::vector<uint64_t> imported;
  bool empty() const {
    return fetched.empty() && written.empty() && dropped.empty() && exported.empty() && imported.empty();
  }
};

}  // namespace quire
