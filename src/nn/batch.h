// The flat batch of one step: the runs of all scheduled sequences, one after the other, with
// nothing between them.
#pragma once

#include <cstdint>
#include <span>

#include "ops/backend.h"
#include "tensor/mirrored.h"
#include "types/ids.h"

namespace quire::nn {

// Layers of one kind share block tables and slots.
struct CacheGroup {
  Mirrored<int64_t> slots;               // [num_tokens], where each token's key and value go
  Mirrored<BlockId> block_tables;        // [num_sequences, block_table_stride]
  Mirrored<ops::SpanPlace> span_places;  // [num_shared_spans, num_sequences] or nullptr: ops/paged_attention.h
};

// One layer's keys and values, or its states.
struct CacheLayer {
  ops::KvCacheView view;       // of states: no memory, and what their blocks are
  ops::StateCacheView states;  // of a layer that keeps none: no memory
  int32_t group = 0;
  int32_t moved = -1;  // Backend::wait_for() this before the cache is used: blocks are copied to and from it; -1: none

  void wait(ops::Backend& backend) const {
    if (moved >= 0) backend.wait_for(moved);
  }
};

struct Batch {
  int64_t num_tokens = 0;
  int32_t num_sequences = 0;
  Mirrored<TokenId> token_ids;              // [num_tokens]
  Mirrored<int32_t> positions;              // [num_tokens]
  Mirrored<int32_t> text_types;             // [num_tokens], which of two texts a token is of; nullptr: not told
  Mirrored<int32_t> query_offsets;          // [num_sequences + 1]
  Mirrored<int32_t> context_lengths;        // [num_sequences], tokens in the cache when the step is done
  const int32_t* prompt_lengths = nullptr;  // [num_sequences], on the host; nullptr: the context lengths
  // Of recurrent layers, which ops/state_cache.h says; nullptr: none.
  Mirrored<int32_t> num_drafts;    // [num_sequences]
  Mirrored<int32_t> num_replayed;  // the same
  int64_t block_table_stride = 0;
  int32_t num_shared_spans = 0;
  bool tables_checked = false;  // PagedAttentionArgs: of all groups
  std::span<const CacheGroup> groups;
  std::span<const CacheLayer> layers;

  const CacheGroup& group_of(const CacheLayer& layer) const { return groups[static_cast<size_t>(layer.group)]; }
  // What attention reads: all that is not the layer's own.
  ops::PagedAttentionArgs attention_over(const CacheLayer& layer) const {
    const CacheGroup& group = group_of(layer);
    return {.cache = layer.view,
            .num_sequences = num_sequences,
            .query_offsets = query_offsets,
            .context_lengths = context_lengths,
            .block_tables = group.block_tables,
            .block_table_stride = block_table_stride,
            .span_places = group.span_places,
            .num_shared_spans = num_shared_spans,
            .tables_checked = tables_checked};
  }
  // What a recurrent layer goes on from and leaves.
  ops::StateRuns runs_over(const CacheLayer& layer) const {
    return {.cache = layer.states,
            .num_sequences = num_sequences,
            .query_offsets = query_offsets,
            .context_lengths = context_lengths,
            .block_tables = group_of(layer).block_tables,
            .block_table_stride = block_table_stride,
            .num_drafts = num_drafts,
            .num_replayed = num_replayed};
  }
};

}  // namespace quire::nn
