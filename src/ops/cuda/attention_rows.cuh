// The rows of a block of attention to few queries: of one sequence, or of those that share a prefix.
#pragma once

#include "ops/cuda/attention.cuh"

namespace quire::ops::cuda {

// What a row of a block is.
struct BlockRow {
  int32_t sequence;
  int32_t query;  // of the sequence; < 0: there is no such row
  int32_t token;
  int32_t position;
};

// Rows of a group with a shared prefix follow each other in the order of its places. `places`: of the group's split;
// nullptr: `block` is of one sequence.
struct SharedRows {
  Rows block;  // `sequence`: whose table names the blocks; num_rows: of all
  const SpanPlace* places;
  int32_t size;
  int32_t first;  // positions that any of its rows sees
  int32_t last;
  int32_t first_split;  // of kFewSplit, that the block goes through
  int32_t last_split;
};

// The rows, without the splits. false: there is nothing to do for this block.
__device__ inline bool find_shared_rows(const Attention& args, SharedRows& sharing) {
  Rows& block = sharing.block;
  sharing.places = nullptr;
  const auto split = static_cast<int32_t>(blockIdx.z);
  if (args.num_splits > 0 && split < args.num_shared_spans) {
    const SpanPlace* places = args.span_places + int64_t{split} * args.num_sequences;
    const auto place = static_cast<int32_t>(blockIdx.x) / args.tiles;
    const SpanPlace own = places[place];
    block.sequence = places[own.first].sequence;
    if (own.size > 1) {
      const SpanPlace end = places[own.first + own.size - 1];
      const int32_t end_queries = args.query_offsets[end.sequence + 1] - args.query_offsets[end.sequence];
      // A group has as many blocks as its sequences would have by themselves, and needs no more.
      const int32_t tile = (place - own.first) * args.tiles + static_cast<int32_t>(blockIdx.x) % args.tiles;
      block.num_rows = (end.queries_before + end_queries) * args.group;
      block.first = tile * kFewRowsOfBlock;
      sharing.places = places + own.first;
      sharing.size = own.size;
      sharing.first = split * kFewSplit;
      sharing.last = sharing.first + kFewSplit - 1;
      return block.first < block.num_rows;
    }
    if (!find_rows_of(args, block.sequence, static_cast<int32_t>(blockIdx.x) % args.tiles, kFewRowsOfBlock, block))
      return false;
  } else if (!find_rows(args, kFewRowsOfBlock, block)) {
    return false;
  }
  const int32_t last_row = min(block.first + kFewRowsOfBlock, block.num_rows) - 1;
  sharing.first = first_seen(args, block.first_position + block.first / args.group);
  sharing.last = block.first_position + last_row / args.group;
  return true;
}

// As find_shared_rows(), with the splits.
__device__ inline bool find_block(const Attention& args, SharedRows& sharing) {
  return find_shared_rows(args, sharing) &&
         find_splits(args, kFewSplit, sharing.first, sharing.last, sharing.first_split, sharing.last_split);
}

__device__ inline BlockRow row_of(const Attention& args, const SharedRows& sharing, int32_t r) {
  if (r >= sharing.block.num_rows) return {0, -1, 0, -1};
  const Rows& block = sharing.block;
  const int32_t query = r / args.group;
  if (sharing.places == nullptr)
    return {block.sequence, query, block.first_token + query, block.first_position + query};
  const SpanPlace& place = sharing.places[last_at_most(
      sharing.size, query, [&](int32_t i) { return int64_t{sharing.places[i].queries_before}; })];
  const int32_t own = query - place.queries_before;
  const int32_t first_token = args.query_offsets[place.sequence];
  const int32_t num_queries = args.query_offsets[place.sequence + 1] - first_token;
  return {place.sequence, own, first_token + own, args.context_lengths[place.sequence] - num_queries + own};
}

}  // namespace quire::ops::cuda
