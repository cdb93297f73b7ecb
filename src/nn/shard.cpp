#include "nn/shard.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "base/check.h"

namespace quire::nn {
namespace {

struct Heads {
  int64_t count;
  int64_t kv_count;
  int64_t unit;
  int64_t group() const { return count / kv_count; }  // queries of a kv head
};

// Kv heads with all that read them; nothing: there is no such cut.
std::optional<HeadShare> share_of_groups(const Heads& all, int rank, int size) {
  const int64_t group = all.group();
  if (size <= all.kv_count) {
    int64_t together = 1;
    while (together < all.kv_count && together * group % all.unit != 0) ++together;
    const Range kv = even_share(all.kv_count, together, rank, size);
    if (kv.count > 0) return HeadShare{{kv.first * group, kv.count * group}, kv};
    return std::nullopt;
  }
  // Ranks are dealt out to the kv heads, then a kv head's queries to its ranks.
  for (int head = 0; head < all.kv_count; ++head) {
    const Range ranks = even_share(size, 1, head, static_cast<int>(all.kv_count));
    if (rank < ranks.first || rank >= ranks.end()) continue;
    const Range own = even_share(group, all.unit, rank - static_cast<int>(ranks.first), static_cast<int>(ranks.count));
    if (own.count > 0) return HeadShare{{head * group + own.first, own.count}, {head, 1}};
  }
  return std::nullopt;
}

std::optional<HeadShare> share_within_groups(const Heads& all, int rank, int size) {
  const Range own = even_share(all.count, all.unit, rank, size);
  if (own.count == 0) return std::nullopt;
  const int64_t first = own.first / all.group();
  return HeadShare{own, {first, (own.end() - 1) / all.group() + 1 - first}};
}

// Heads of either kind of the rank that has the most: what the others wait for. Of a cut that is none more than any.
int64_t most_of(decltype(share_of_groups) share, const Heads& all, int size) {
  int64_t most = 0;
  for (int rank = 0; rank < size; ++rank) {
    const auto own = share(all, rank, size);
    if (!own) return std::numeric_limits<int64_t>::max();
    most = std::max(most, own->heads.count + own->kv_heads.count);
  }
  return most;
}

}  // namespace

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

Range layers_of(const Stage& stage, int32_t num_layers) {
  if (stage.without_layers) return {};
  return even_share(num_layers, 1, stage.index, stage.count);
}

Result<HeadShare> share_heads(int32_t num_heads, int32_t num_kv_heads, int64_t unit, int rank, int size,
                              bool cuts_groups) {
  QUIRE_CHECK(num_kv_heads > 0 && num_heads % num_kv_heads == 0);
  const Heads all{num_heads, num_kv_heads, unit};
  const bool cut = cuts_groups && most_of(share_within_groups, all, size) < most_of(share_of_groups, all, size);
  if (const auto own = cut ? share_within_groups(all, rank, size) : share_of_groups(all, rank, size)) return *own;
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
