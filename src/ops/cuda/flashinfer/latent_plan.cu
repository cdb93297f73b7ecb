// Which block of latent attention computes and merges what, planned on the card: FlashInfer's arrays (scheduler.cuh,
// MLAPlan). Where contexts are cut, all pieces fit the card at once, a team of blocks each; where there are more tiles
// of queries than teams none is cut, and teams take turns.
#include <climits>

#include "ops/cuda/flashinfer/planning.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = kPlanThreads;
constexpr int32_t kBlockRows = 64;

// Team t has items t, t + num_teams, and so on, one behind the other.
__device__ int32_t first_item(int32_t num_items, int32_t num_teams, int32_t team) {
  return num_items / num_teams * team + min(team, num_items % num_teams);
}

__device__ int32_t queries_of(const CardBatch& batch, int32_t sequence) {
  return batch.query_offsets.device[sequence + 1] - batch.query_offsets.device[sequence];
}

// Where each sequence's tiles end -> plan.tile_ends. Returns how many there are. sums: as sum_up_to() has them.
__device__ __forceinline__ int32_t count_tiles(const CardBatch& batch, int32_t rows_of_tile, const LatentPlan& plan,
                                               int32_t* sums) {
  int32_t num_tiles = 0;
  for (int32_t begin = 0; begin < batch.num_sequences; begin += kThreads) {
    const int32_t s = begin + static_cast<int32_t>(threadIdx.x);
    const int32_t tiles = s < batch.num_sequences ? ceil_quotient(queries_of(batch, s) * batch.group, rows_of_tile) : 0;
    int32_t all = 0;
    const int32_t end = num_tiles + sum_up_to(tiles, sums, all);
    num_tiles += all;
    if (s < batch.num_sequences) plan.tile_ends[s] = end;
  }
  return num_tiles;
}

struct Tile {
  int32_t sequence, first_row, num_rows, length;
};

// REQUIRES: plan.tile_ends is there.
__device__ __forceinline__ Tile tile_at(const CardBatch& batch, int32_t rows_of_tile, const LatentPlan& plan,
                                        int32_t index) {
  const int32_t s = find_end(plan.tile_ends, batch.num_sequences, index);
  const int32_t row = (index - (s == 0 ? 0 : plan.tile_ends[s - 1])) * rows_of_tile;
  const int32_t queries = queries_of(batch, s);
  const int32_t context = batch.context_lengths.device[s];
  const int32_t seen = context - queries + ceil_quotient(row + rows_of_tile, batch.group);  // by its last query
  return {s, row, min(rows_of_tile, queries * batch.group - row), min(context, seen)};
}

// Items [item, item + pieces): a tile by its pieces of `length`. num_tiles: of all. part: of its first piece; -1: it
// is not cut.
__device__ __forceinline__ void write_items(const CardBatch& batch, const LatentSize& size, const LatentPlan& plan,
                                            const Tile& tile, int32_t num_tiles, int32_t length, int32_t item,
                                            int32_t pieces, int32_t part) {
  for (int32_t i = 0; i < pieces; ++i) {
    const int32_t team = (item + i) % size.num_teams;
    const int32_t turn = (item + i) / size.num_teams;
    const int32_t at = first_item(max(num_tiles, size.num_teams), size.num_teams, team) + turn;
    plan.query_offsets[at] = batch.query_offsets.device[tile.sequence];
    plan.page_offsets[at] = tile.sequence * batch.table_stride;
    plan.parts[at] = part >= 0 ? part + i * tile.num_rows : -1;
    plan.num_queries[at] = queries_of(batch, tile.sequence);
    plan.context_lengths[at] = batch.context_lengths.device[tile.sequence];
    plan.first_rows[at] = tile.first_row;
    plan.begins[at] = i * length;
    plan.ends[at] = i + 1 < pieces ? (i + 1) * length : tile.length;
  }
}

// Merges [merge, merge + merges) of the parts [part, part + parts) of a tile that is cut, some of its rows each.
__device__ __forceinline__ void write_merges(const CardBatch& batch, const LatentPlan& plan, const Tile& tile,
                                             int32_t merge, int32_t merges, int32_t part, int32_t parts) {
  const int32_t first_row = batch.query_offsets.device[tile.sequence] * batch.group + tile.first_row;
  const int32_t chunk = merges > 0 ? ceil_quotient(tile.num_rows, merges) : 1;
  for (int32_t i = 0; i < merges && i * chunk < tile.num_rows; ++i) {
    plan.merge_begins[merge + i] = first_row + i * chunk;
    plan.merge_ends[merge + i] = first_row + min((i + 1) * chunk, tile.num_rows);
    plan.part_begins[merge + i] = part + i * chunk;
    plan.part_ends[merge + i] = part + parts;
    plan.part_strides[merge + i] = tile.num_rows;
  }
}

// One block.
__global__ void __launch_bounds__(kThreads)
    plan_latent(const CardBatch batch, const LatentSize size, const LatentPlan plan) {
  begin_kernel();
  __shared__ int32_t sums[kThreads / kWarp];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t rows_of_tile = size.blocks_of_tile * kBlockRows;
  const int32_t num_tiles = count_tiles(batch, rows_of_tile, plan, sums);
  const int32_t num_blocks = size.num_teams * size.blocks_of_tile;
  for (int32_t block = thread; block < num_blocks; block += kThreads) {
    plan.merge_begins[block] = plan.merge_ends[block] = 0;
    plan.part_begins[block] = plan.part_ends[block] = plan.part_strides[block] = 0;
  }
  __syncthreads();

  int32_t length = INT_MAX;
  if (num_tiles < size.num_teams) {
    length = shortest_piece(batch.longest_context, size.num_teams, [&](int32_t piece) {
      int32_t items = 0;
      for (int32_t i = thread; i < num_tiles; i += kThreads)
        items += ceil_quotient(tile_at(batch, rows_of_tile, plan, i).length, piece);
      int32_t all = 0;
      sum_up_to(items, sums, all);
      return all;
    });
  }
  int32_t items = 0;
  int32_t parts = 0;
  int32_t merges = 0;
  for (int32_t begin = 0; begin < num_tiles; begin += kThreads) {
    const bool there = begin + thread < num_tiles;
    const Tile tile = there ? tile_at(batch, rows_of_tile, plan, begin + thread) : Tile{0, 0, 0, 0};
    const int32_t pieces = there ? (tile.length - 1) / length + 1 : 0;
    const bool cut = pieces > 1;
    int32_t all = 0;
    const int32_t item = items + sum_up_to(pieces, sums, all) - pieces;
    items += all;
    const int32_t parts_of_tile = cut ? pieces * tile.num_rows : 0;
    const int32_t part = parts + sum_up_to(parts_of_tile, sums, all) - parts_of_tile;
    parts += all;
    // As many blocks merge as computed.
    const int32_t merges_of_tile = cut ? pieces * size.blocks_of_tile : 0;
    const int32_t merge = merges + sum_up_to(merges_of_tile, sums, all) - merges_of_tile;
    merges += all;
    write_items(batch, size, plan, tile, num_tiles, length, item, pieces, cut ? part : -1);
    write_merges(batch, plan, tile, merge, merges_of_tile, part, parts_of_tile);
  }
  for (int32_t team = thread; team <= size.num_teams; team += kThreads)
    plan.item_offsets[team] = first_item(items, size.num_teams, team);
}

}  // namespace

LatentSize size_of_latent(const CardBatch& batch) {
  LatentSize size{.num_sequences = batch.num_sequences};
  for (int32_t s = 0; s < batch.num_sequences; ++s) {
    if (batch.query_offsets.host[s + 1] > batch.query_offsets.host[s]) ++size.num_runs;
  }
  size.num_tokens = batch.query_offsets.host[batch.num_sequences];
  if (size.num_runs == 0) return size;
  if (int64_t{size.num_tokens} * batch.group / size.num_runs > kBlockRows) size.blocks_of_tile = 2;
  size.num_teams = num_processors() / size.blocks_of_tile;
  int64_t tiles = 0;
  for (int32_t s = 0; s < batch.num_sequences; ++s) {
    const int64_t queries = batch.query_offsets.host[s + 1] - batch.query_offsets.host[s];
    tiles += ceil_div(queries * batch.group, size.blocks_of_tile * kBlockRows);
  }
  size.num_items = std::max(size.num_teams, static_cast<int32_t>(tiles));
  return size;
}

size_t lay_out(const LatentSize& size, void* memory, LatentPlan& plan) {
  Layout layout(memory);
  for (int32_t** place : {&plan.query_offsets, &plan.page_offsets, &plan.parts, &plan.num_queries,
                          &plan.context_lengths, &plan.first_rows, &plan.begins, &plan.ends}) {
    layout.take(*place, size.num_items);
  }
  for (int32_t** place : {&plan.merge_begins, &plan.merge_ends, &plan.part_begins, &plan.part_ends, &plan.part_strides})
    layout.take(*place, size.num_teams * size.blocks_of_tile);
  layout.take(plan.item_offsets, size.num_teams + 1);
  layout.take(plan.tile_ends, size.num_sequences);
  return layout.bytes();
}

int64_t latent_parts(const LatentSize& size) {
  return int64_t{size.num_teams} * size.blocks_of_tile * kBlockRows;
}

int32_t latent_positions() {
  int device = 0;
  int bytes = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  // Queries and two tiles of keys, of 16 bits, and what rows share.
  const auto fits = [&](int32_t positions) { return (kBlockRows + 2 * positions) * kLatentKeyDim * 2 + 4096 <= bytes; };
  if (fits(kManyLatentPositions)) return kManyLatentPositions;
  return fits(kFewLatentPositions) ? kFewLatentPositions : 0;
}

void plan_on_card(const CardBatch& batch, const LatentSize& size, const LatentPlan& plan, cudaStream_t stream) {
  launch(plan_latent, dim3(1), kThreads, 0, stream, batch, size, plan);
}

}  // namespace quire::ops::cuda
