// Which block of FA2's tile of 16 rows computes what, planned on the card: what FlashInfer plans on the host
// (scheduler.cuh), by the same rules, into the same arrays. The host need not know how long contexts are, so that a
// graph plans anew whenever it is replayed.
#include "ops/cuda/flashinfer/planning.cuh"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = kPlanThreads;
constexpr int32_t kTile = kShortTile;

// What of a context a tile of queries reads at most: the kernel counts a sequence's pieces by the same.
__device__ int32_t read_length(const CardBatch& batch, int32_t context) {
  return batch.window > 0 ? min(context, batch.window - 1 + kTile) : context;
}

struct RunCounts {
  int32_t runs = 0;
  int32_t tokens = 0;
};

// The batch's short runs one behind the other. sums: as sum_up_to() has them.
__device__ __forceinline__ RunCounts gather_runs(const CardBatch& batch, const ShortPlan& plan, int32_t* sums) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  RunCounts counts;
  for (int32_t begin = 0; begin < batch.num_sequences; begin += kThreads) {
    const int32_t s = begin + thread;
    const int32_t first = s < batch.num_sequences ? batch.query_offsets.device[s] : 0;
    const int32_t queries = s < batch.num_sequences ? batch.query_offsets.device[s + 1] - first : 0;
    const bool there = is_short(queries, batch.group, batch.most_rows);
    int32_t all = 0;
    const int32_t run = counts.runs + sum_up_to(there ? 1 : 0, sums, all) - 1;
    counts.runs += all;
    const int32_t token = counts.tokens + sum_up_to(there ? queries : 0, sums, all) - queries;
    counts.tokens += all;
    if (!there) continue;
    plan.query_offsets[run] = token;
    plan.page_offsets[run] = s * batch.table_stride;
    plan.context_lengths[run] = batch.context_lengths.device[s];
    for (int32_t i = 0; i < queries; ++i) plan.tokens[token + i] = first + i;
  }
  if (thread == 0) {
    plan.query_offsets[counts.runs] = counts.tokens;
    plan.page_offsets[counts.runs] = batch.num_sequences * batch.table_stride;
  }
  return counts;
}

// Which tile and piece of which run each of the grid's items is, of which the first `items` are any.
__device__ __forceinline__ void write_items(const CardBatch& batch, const ShortPlan& plan, int32_t num_runs,
                                            int32_t length, int32_t items, int32_t num_items) {
  for (int32_t item = static_cast<int32_t>(threadIdx.x); item < num_items; item += kThreads) {
    plan.item_valid[item] = item < items;
    if (item >= items) continue;
    const int32_t run = find_end(plan.item_ends, num_runs, item);
    const int32_t pieces = ceil_quotient(read_length(batch, plan.context_lengths[run]), length);
    const int32_t index = item - (run == 0 ? 0 : plan.item_ends[run - 1]);
    plan.item_runs[item] = run;
    plan.item_tiles[item] = index / pieces;
    plan.item_pieces[item] = index % pieces;
  }
}

// One block.
__global__ void __launch_bounds__(kThreads) plan_runs(const CardBatch batch, const ShortPlan plan, int32_t num_items) {
  begin_kernel();
  __shared__ int32_t sums[kThreads / kWarp];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const RunCounts counts = gather_runs(batch, plan, sums);
  const int32_t num_runs = counts.runs;
  __syncthreads();

  const auto tiles_of = [&](int32_t run) {
    return ceil_quotient((plan.query_offsets[run + 1] - plan.query_offsets[run]) * batch.group, kTile);
  };
  // Of the whole grid, when contexts are cut at every `length`-th position.
  const auto items_of = [&](int32_t length) {
    int32_t items = 0;
    for (int32_t run = thread; run < num_runs; run += kThreads)
      items += tiles_of(run) * ceil_quotient(read_length(batch, plan.context_lengths[run]), length);
    int32_t all = 0;
    sum_up_to(items, sums, all);
    return all;
  };
  const int32_t length = shortest_piece(batch.longest_context, num_items, items_of);
  if (thread == 0) *plan.piece_length = length;

  int32_t items = 0;
  int32_t parts = 0;
  for (int32_t begin = 0; begin < num_runs; begin += kThreads) {
    const int32_t run = begin + thread;
    const bool there = run < num_runs;
    const int32_t context = there ? plan.context_lengths[run] : 0;
    const int32_t pieces = ceil_quotient(read_length(batch, context), length);
    const int32_t first = there ? plan.query_offsets[run] : 0;
    const int32_t queries = there ? plan.query_offsets[run + 1] - first : 0;
    int32_t all = 0;
    const int32_t item = items + sum_up_to(there ? tiles_of(run) * pieces : 0, sums, all);
    items += all;
    const int32_t part = parts + sum_up_to(queries * pieces, sums, all) - queries * pieces;
    parts += all;
    if (!there) continue;
    plan.item_ends[run] = item;
    plan.part_offsets[run] = part;
    for (int32_t i = 0; i < queries; ++i) plan.merge_offsets[first + i] = part + i * pieces;
    // The kernel takes a sequence for as long as its row of the table, but for what this takes away.
    const int32_t pages = plan.page_offsets[run + 1] - plan.page_offsets[run];
    plan.last_page_lengths[run] = context - (pages - 1) * batch.page_size;
  }
  if (thread == 0) {
    plan.part_offsets[num_runs] = parts;
    plan.merge_offsets[counts.tokens] = parts;
  }
  __syncthreads();
  write_items(batch, plan, num_runs, length, items, num_items);
}

}  // namespace

ShortSize size_of_short_runs(const CardBatch& batch) {
  ShortSize size;
  int32_t tiles = 0;
  int32_t queries_of_tile = 0;
  for (int32_t s = 0; s < batch.num_sequences; ++s) {
    const int32_t queries = batch.query_offsets.host[s + 1] - batch.query_offsets.host[s];
    if (!is_short(queries, batch.group, batch.most_rows)) continue;
    const auto tiles_of_run = static_cast<int32_t>(ceil_div(int64_t{queries} * batch.group, kTile));
    if (size.num_runs == 0) size.first_token = batch.query_offsets.host[s];
    size.together =
        size.num_runs == 0 || (size.together && batch.query_offsets.host[s] == size.first_token + size.num_tokens);
    ++size.num_runs;
    size.num_tokens += queries;
    tiles += tiles_of_run;
    queries_of_tile = std::max(queries_of_tile, static_cast<int32_t>(ceil_div(queries, tiles_of_run)));
  }
  if (size.num_runs == 0) return size;
  // Two blocks a processor.
  size.num_items = std::max(2 * num_processors() / batch.num_kv_heads, tiles);
  size.num_parts = size.num_items * queries_of_tile;
  return size;
}

size_t lay_out(const ShortSize& size, void* memory, ShortPlan& plan) {
  Layout layout(memory);
  layout.take(plan.query_offsets, size.num_runs + 1);
  layout.take(plan.page_offsets, size.num_runs + 1);
  layout.take(plan.last_page_lengths, size.num_runs);
  layout.take(plan.context_lengths, size.num_runs);
  layout.take(plan.tokens, size.num_tokens);
  layout.take(plan.item_runs, size.num_items);
  layout.take(plan.item_tiles, size.num_items);
  layout.take(plan.item_pieces, size.num_items);
  layout.take(plan.item_ends, size.num_runs);
  layout.take(plan.item_valid, size.num_items);
  layout.take(plan.part_offsets, size.num_runs + 1);
  layout.take(plan.merge_offsets, size.num_tokens + 1);
  layout.take(plan.piece_length, 1);
  return layout.bytes();
}

void plan_on_card(const CardBatch& batch, const ShortSize& size, const ShortPlan& plan, cudaStream_t stream) {
  launch(plan_runs, dim3(1), kThreads, 0, stream, batch, plan, size.num_items);
}

}  // namespace quire::ops::cuda
