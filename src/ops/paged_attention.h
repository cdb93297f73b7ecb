// Causal attention of a flat batch of query runs over the paged cache (Kwon et al., 2023; online softmax after Milakov
// and Gimelshein, 2018, and Dao et al., 2022). Query i of sequence s stands at position
//   p = context_lengths[s] - (query_offsets[s+1] - query_offsets[s]) + i
// and sees the cached positions max(0, p - window + 1) .. p. Keys and values of this step are in the cache already.
// With both_ways it also sees those behind it, up to min(context_lengths[s] - 1, p + window - 1).
// A row's result depends on its own position and cache content alone: tiles and splits are cut by absolute position.
#pragma once

#include <cstdint>

#include "ops/kv_cache.h"
#include "tensor/mirrored.h"
#include "types/ids.h"

namespace quire::ops {

// Sequences whose block tables name the same blocks for a whole span of positions, [k * kSharedSpan, (k + 1) *
// kSharedSpan), and whose queries all come behind it, are a group there: a device may read the span's keys and values
// once for several of them (cascades of shared prefixes: Juravsky et al., 2024; Ye et al., 2024). No bit of a result
// depends on it.
inline constexpr int32_t kSharedSpan = 256;
// Sequences of more queries keep to themselves: what they read is used by many rows anyway.
inline constexpr int32_t kMostSharedQueries = 8;

// A sequence's place in a span, where a group's sequences follow each other.
struct SpanPlace {
  int32_t sequence = 0;
  int32_t first = 0;           // the place of the first of its group; its own where it is alone
  int32_t size = 1;            // sequences of the group
  int32_t queries_before = 0;  // of those of the group before it
};

struct PagedAttentionArgs {
  const float* queries = nullptr;  // [num_tokens, num_heads, head_dim], tokens query_stride apart
  int64_t query_stride = 0;        // in floats
  int32_t num_heads = 0;           // a multiple of cache.num_kv_heads, unless group says otherwise
  // Head h reads kv head (h + heads_before) / group: of the first kv head's group, heads_before are another rank's, and
  // of the last one's some may be. 0: num_heads / num_kv_heads. REQUIRES where it is another number: the backend cuts
  // groups.
  int32_t group = 0;
  int32_t heads_before = 0;
  KvCacheView cache;
  int32_t num_sequences = 0;
  Mirrored<int32_t> query_offsets;    // [num_sequences + 1], rising from 0 to num_tokens
  Mirrored<int32_t> context_lengths;  // [num_sequences]: tokens in the cache, this step's included
  Mirrored<BlockId> block_tables;     // [num_sequences, block_table_stride]
  int64_t block_table_stride = 0;
  // [num_shared_spans, num_sequences], every sequence once in each span; in later spans all are alone. nullptr: in all.
  Mirrored<SpanPlace> span_places;
  int32_t num_shared_spans = 0;
  // Whether check_tables() has seen these tables and places: it is once a step, not in every layer.
  bool tables_checked = false;
  float scale = 1.0f;  // of the scores; usually 1 / sqrt(head_dim)
  int32_t window = 0;  // 0: all positions
  // No causal mask (encoders, whose queries are all of their context; a block that is drafted, whose queries are the
  // last of it).
  bool both_ways = false;
  float soft_cap = 0;  // scores s become soft_cap * tanh(s / soft_cap) (Gemma Team, 2024); 0: they stay
  // [num_heads] or nullptr: a score of each head's own that takes part in the softmax and has no value (gpt-oss).
  const float* sinks = nullptr;
  float* out = nullptr;   // [num_tokens, num_heads, head_dim], dense; where values are keys, of the whole key
  int32_t value_dim = 0;  // where values are keys: of `out` the first so many of each are wanted; 0: all
};

inline int32_t heads_of_group(const PagedAttentionArgs& args) {
  return args.group > 0 ? args.group : args.num_heads / args.cache.num_kv_heads;
}

// The last position that the query at `position` sees, in a context of so many.
inline int64_t last_seen(const PagedAttentionArgs& args, int64_t position, int64_t context) {
  if (!args.both_ways) return position;
  const int64_t last = context - 1;
  return args.window > 0 && position + args.window - 1 < last ? position + args.window - 1 : last;
}

void check(const PagedAttentionArgs& args);

// What block_tables and span_places say, of the lengths, cache and window that args have beside them. Part of check()
// unless tables_checked. A caller whose layers share tables calls it once, with the largest window.
void check_tables(const PagedAttentionArgs& args);

}  // namespace quire::ops
