// Block tables as they travel: told whole once, and then what has changed of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "types/ids.h"

namespace quire {

// One group's table of a sequence has num_blocks entries from now on, of which [first, first + count) are new. Which
// they are stands beside the changes, one change's after the other's.
struct TableChange {
  SequenceId id = 0;
  int32_t group = 0;
  int32_t num_blocks = 0;
  int32_t first = 0;
  int32_t count = 0;

  bool operator==(const TableChange&) const = default;
};

// The tables of one sequence, a group each, as they were told last. Whoever tells and whoever is told have one each,
// and both are the same after every plan.
class BlockTables {
 public:
  // Appends what has changed since the last call: the new blocks at the end, those that went behind the window
  // (kNoBlock), copies in the place of shared ones; all of it where nothing was told before or everything is another.
  void tell(SequenceId id, int32_t group, std::span<const BlockId> table, std::vector<TableChange>& changes,
            std::vector<BlockId>& blocks);

  // The other end. blocks: [change.count]. REQUIRES: 0 <= first, 0 <= count, first + count <= num_blocks.
  void take(const TableChange& change, std::span<const BlockId> blocks);

  size_t num_groups() const { return tables_.size(); }
  // Empty: nothing was told of this group.
  std::span<const BlockId> table(size_t group) const {
    return group < tables_.size() ? std::span<const BlockId>(tables_[group]) : std::span<const BlockId>();
  }

 private:
  std::vector<BlockId>& at(int32_t group);

  std::vector<std::vector<BlockId>> tables_;
};

}  // namespace quire
