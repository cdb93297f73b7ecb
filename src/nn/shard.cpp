#include "nn/shard.h"

#include <algorithm>

#include "base/check.h"

namespace quire::nn {

Range even_share(int64_t total, int64_t unit, int rank, int size) {
  QUIRE_CHECK(unit > 0 && rank >= 0 && rank < size);
  const int64_t units = (total + unit - 1) / unit;
  if (units < size) return {};
  const auto begin_of = [&](int64_t r) {
    return std::min(total, (units / size * r + std::min(r, units % size)) * unit);
  };
  const int64_t first = begin_of(rank);
  return {first, begin_of(int64_t{rank} + 1) - first};
}

Range share_of(int64_t total, int64_t least, int64_t most, const Shard& shard) {
  QUIRE_CHECK(most % least == 0);
  const bool wide = (total + most - 1) / most >= shard.size;
  return even_share(total, wide ? most : least, shard.rank, shard.size);
}

Range balanced_share(int64_t total, int64_t unit, int64_t work, const std::vector<int64_t>& loads, int rank) {
  const int64_t units = (total + unit - 1) / unit;
  const auto size = static_cast<int64_t>(loads.size());
  if (units < size) return {};
  std::vector<int64_t> given(loads.size(), 1);
  std::vector<int64_t> sums = loads;
  for (int64_t& sum : sums) sum += work;
  for (int64_t left = units - size; left > 0; --left) {
    const auto least = static_cast<size_t>(std::ranges::min_element(sums) - sums.begin());
    ++given[least];
    sums[least] += work;
  }
  int64_t first = 0;
  for (int before = 0; before < rank; ++before) first += given[static_cast<size_t>(before)];
  const int64_t begin = std::min(total, first * unit);
  return {begin, std::min(total, (first + given[static_cast<size_t>(rank)]) * unit) - begin};
}

Range layers_of(const Stage& stage, int32_t num_layers) {
  if (stage.without_layers) return {};
  return even_share(num_layers, 1, stage.index, stage.count);
}

Result<HeadShare> share_heads(int32_t num_heads, int32_t num_kv_heads, int64_t unit, int rank, int size) {
  QUIRE_CHECK(num_kv_heads > 0 && num_heads % num_kv_heads == 0);
  const int64_t group = num_heads / num_kv_heads;  // queries of a kv head
  if (size <= num_kv_heads) {
    int64_t groups = 1;  // that have to stay together
    while (groups < num_kv_heads && groups * group % unit != 0) ++groups;
    const Range kv = even_share(num_kv_heads, groups, rank, size);
    if (kv.count > 0) return HeadShare{{kv.first * group, kv.count * group}, kv};
  } else {
    // Ranks are dealt out to the kv heads, then a kv head's queries to its ranks.
    for (int32_t head = 0; head < num_kv_heads; ++head) {
      const Range ranks = even_share(size, 1, head, num_kv_heads);
      if (rank < ranks.first || rank >= ranks.end()) continue;
      const Range own = even_share(group, unit, rank - static_cast<int>(ranks.first), static_cast<int>(ranks.count));
      if (own.count > 0) return HeadShare{{head * group + own.first, own.count}, {head, 1}};
    }
  }
  return invalid_argument(
      "tensor_parallel_size {}: the {} heads ({} of keys and values) cannot be cut into so many parts{}; choose fewer "
      "processes",
      size, num_heads, num_kv_heads,
      unit > 1 ? fmt::format(" at multiples of {}, whose weights share scales", unit) : "");
}

std::vector<Range> within(const std::vector<Range>& ranges, const Range& part) {
  std::vector<Range> out;
  for (const Range& range : ranges) {
    const int64_t first = std::max(range.first, part.first);
    const int64_t end = std::min(range.end(), part.end());
    if (first < end) out.push_back({first - part.first, end - first});
  }
  return out;
}

std::vector<comm::ColumnRange> vocabulary_columns(int64_t vocab_size, int size) {
  constexpr int64_t kPreferred = 64;
  std::vector<comm::ColumnRange> columns;
  for (int rank = 0; rank < size; ++rank) {
    const Range own = share_of(vocab_size, 1, kPreferred, {rank, size});
    columns.push_back({own.first, own.count});
  }
  return columns;
}

}  // namespace quire::nn
