#include "types/block_tables.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

std::vector<BlockId>& BlockTables::at(int32_t group) {
  const auto index = static_cast<size_t>(group);
  if (index >= tables_.size()) tables_.resize(index + 1);
  return tables_[index];
}

void BlockTables::tell(SequenceId id, int32_t group, std::span<const BlockId> table, std::vector<TableChange>& changes,
                       std::vector<BlockId>& blocks) {
  std::vector<BlockId>& told = at(group);
  const size_t common = std::min(told.size(), table.size());
  const size_t size = told.size();
  const size_t begin = changes.size();
  told.resize(table.size(), kNoBlock);
  for (size_t i = 0; i < table.size();) {
    if (i < common) {
      i = static_cast<size_t>(std::mismatch(told.begin() + static_cast<std::ptrdiff_t>(i),
                                            told.begin() + static_cast<std::ptrdiff_t>(common),
                                            table.begin() + static_cast<std::ptrdiff_t>(i))
                                  .first -
                              told.begin());
      if (i == table.size()) break;
    }
    const size_t first = i;
    while (i < table.size() && (i >= common || told[i] != table[i])) {
      told[i] = table[i];
      blocks.push_back(table[i]);
      ++i;
    }
    changes.push_back({.id = id,
                       .group = group,
                       .num_blocks = static_cast<int32_t>(table.size()),
                       .first = static_cast<int32_t>(first),
                       .count = static_cast<int32_t>(i - first)});
  }
  if (changes.size() == begin && size != table.size()) {
    changes.push_back({.id = id, .group = group, .num_blocks = static_cast<int32_t>(table.size())});
  }
}

void BlockTables::take(const TableChange& change, std::span<const BlockId> blocks) {
  std::vector<BlockId>& told = at(change.group);
  const auto first = static_cast<size_t>(change.first);
  const auto count = static_cast<size_t>(change.count);
  const auto size = static_cast<size_t>(change.num_blocks);
  QUIRE_CHECK(change.first >= 0 && change.count >= 0 && first + count <= size && blocks.size() == count);
  told.resize(size, kNoBlock);
  std::ranges::copy(blocks, told.begin() + change.first);
}

}  // namespace quire
