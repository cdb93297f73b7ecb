#include "ops/state_cache.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

namespace {

// Of positions [begin, end).
void check_drafts(const StateRuns& runs, int64_t s, int64_t begin, int64_t end) {
  const int64_t drafts = runs.num_drafts.host == nullptr ? 0 : runs.num_drafts.host[s];
  const int64_t replayed = runs.num_replayed.host == nullptr ? 0 : runs.num_replayed.host[s];
  const int64_t size = runs.cache.block_size;
  QUIRE_CHECK_MSG(
      drafts >= 0 && drafts < end - begin && drafts <= runs.cache.most_drafts,
      fmt::format("sequence {}: {} drafts of {} tokens, room for {}", s, drafts, end - begin, runs.cache.most_drafts));
  QUIRE_CHECK_MSG(replayed >= 0 && replayed < begin + (replayed == 0 ? 1 : 0) && replayed <= runs.cache.most_drafts &&
                      (replayed == 0 || (begin - replayed - 1) / size == begin / size),
                  fmt::format("sequence {}: {} drafts replayed before {} in blocks of {}, room for {}", s, replayed,
                              begin, size, runs.cache.most_drafts));
}

}  // namespace

void check(const StateRuns& runs) {
  const StateCacheView& cache = runs.cache;
  QUIRE_CHECK_MSG(cache.block_size >= 1 && cache.size >= 1 && cache.stride % static_cast<int64_t>(sizeof(float)) == 0 &&
                      cache.stride >= cache.size * static_cast<int64_t>(sizeof(float)),
                  fmt::format("states of {} numbers, {} bytes apart, in blocks of {} tokens", cache.size, cache.stride,
                              cache.block_size));
  if (runs.num_sequences == 0) return;
  QUIRE_CHECK(cache.states != nullptr && runs.query_offsets.device != nullptr &&
              runs.context_lengths.device != nullptr && runs.block_tables.device != nullptr);
  if (runs.query_offsets.host == nullptr || runs.context_lengths.host == nullptr || runs.block_tables.host == nullptr) {
    return;
  }
  for (int64_t s = 0; s < runs.num_sequences; ++s) {
    const int64_t count = runs.query_offsets.host[s + 1] - runs.query_offsets.host[s];
    const int64_t end = runs.context_lengths.host[s];
    QUIRE_CHECK_MSG(count >= 1 && count <= end && (end - 1) / cache.block_size < runs.block_table_stride,
                    fmt::format("sequence {}: {} tokens of a context of {}, a table of {} blocks", s, count, end,
                                runs.block_table_stride));
    check_drafts(runs, s, end - count, end);
    const int64_t first = end - count > 0 ? (end - count - 1) / cache.block_size : 0;
    for (int64_t i = first; i <= (end - 1) / cache.block_size; ++i) {
      const BlockId block = runs.block_tables.host[s * runs.block_table_stride + i];
      QUIRE_CHECK_MSG(block >= 0 && block < cache.num_blocks,
                      fmt::format("sequence {}: block {} of {}", s, block, cache.num_blocks));
    }
  }
}

}  // namespace quire::ops
