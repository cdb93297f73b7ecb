#include "ops/cpu/attention_schedule.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace quire::ops::cpu {
namespace {

// Rows (a token's head) of an item, by number and by floats of their vectors.
constexpr int64_t kMaxRows = 192;
constexpr int64_t kMaxRowFloats = 12288;
constexpr int32_t kMaxTokens = kAttentionMaxTokens;
constexpr int64_t kSplitTokens = 256;
constexpr int64_t kPartialFloats = int64_t{2} << 20;
// Under this many multiply-adds waking the other threads costs more than it saves.
constexpr int64_t kMinParallelWork = 16384;

// Scratch of a thread: scaled queries, a partial, a total (each with maxima and sums), scores, a tile of keys and
// values.
constexpr int64_t kPartialSize = kMaxRowFloats + 2 * kMaxRows;
constexpr int64_t kWidenedFloats = int64_t{2} * kAttentionTileTokens * AttentionSchedule::kMaxHeadDim;
constexpr int64_t kThreadFloats = kMaxRowFloats + 2 * kPartialSize + kAttentionScoreFloats + kWidenedFloats;
static_assert(kThreadFloats % 16 == 0 && kPartialSize % 16 == 0 && kMaxRows % 16 == 0);

int64_t first_seen(const PagedAttentionArgs& args, int64_t position) {
  return args.window > 0 ? std::max<int64_t>(0, position - args.window + 1) : int64_t{0};
}

int64_t context_of(const PagedAttentionArgs& args, int32_t sequence) {
  return args.context_lengths.host[sequence];
}

// Whole tiles, at least kSplitTokens: see tile_at() in paged_attention.kernels.cpp.
int64_t split_tokens(int64_t block_size) {
  const int64_t unit = block_size <= kAttentionTileTokens ? kAttentionTileTokens / block_size * block_size : block_size;
  return (kSplitTokens + unit - 1) / unit * unit;
}

}  // namespace

struct AttentionSchedule::ThreadScratch {
  float* queries;
  float* scores;
  float* widened;
  Partial partial;
  Partial total;
};

int64_t AttentionSchedule::scratch_bytes(int num_threads) {
  return (num_threads * kThreadFloats + kPartialFloats) * static_cast<int64_t>(sizeof(float));
}

AttentionSchedule::AttentionSchedule(const Kernels& kernels, ThreadPool& pool, float* scratch)
    : kernels_(kernels), pool_(pool), scratch_(scratch), partials_(scratch + pool.num_threads() * kThreadFloats) {}

AttentionSchedule::ThreadScratch AttentionSchedule::thread_scratch(int thread) const {
  float* at = scratch_ + thread * kThreadFloats;
  const auto partial_at = [](float* p) { return Partial{p, p + kMaxRows, p + 2 * kMaxRows}; };
  ThreadScratch result{};
  result.queries = at;
  result.partial = partial_at(at + kMaxRowFloats);
  result.total = partial_at(at + kMaxRowFloats + kPartialSize);
  result.scores = at + kMaxRowFloats + 2 * kPartialSize;
  result.widened = result.scores + kAttentionScoreFloats;
  return result;
}

AttentionSchedule::Partial AttentionSchedule::stored_partial(const Item& item, int64_t index, int32_t head_dim) const {
  const int64_t rows = int64_t{item.num_tokens} * item.num_heads;
  float* at = partials_ + item.partials + index * rows * (head_dim + 2);
  return {at, at + rows, at + 2 * rows};
}

void AttentionSchedule::run(const PagedAttentionArgs& args) {
  QUIRE_CHECK(args.cache.head_dim <= kMaxHeadDim);
  if (args.num_sequences == 0) return;
  find_plan(args);
  for (const Item& item : now_->items) {
    if (item.partials >= 0) {
      unfinished_[static_cast<size_t>(item.unfinished)].store(item.num_splits, std::memory_order_relaxed);
    }
  }
  const auto body = [&](int64_t task, int thread) { run_task(args, task, thread_scratch(thread)); };
  const auto num_tasks = static_cast<int64_t>(now_->tasks.size());
  if (now_->work < kMinParallelWork || num_tasks == 1) {
    for (int64_t task = 0; task < num_tasks; ++task) body(task, 0);
  } else {
    pool_.parallel_for(num_tasks, body);
  }
}

bool AttentionSchedule::is_of(const Plan& plan, const PagedAttentionArgs& args) {
  const Key& key = plan.key;
  const auto sequences = static_cast<size_t>(args.num_sequences);
  return key.context_lengths.size() == sequences && key.num_heads == args.num_heads &&
         key.num_kv_heads == args.cache.num_kv_heads && key.group == args.group &&
         key.heads_before == args.heads_before && key.head_dim == args.cache.head_dim &&
         key.block_size == args.cache.block_size && key.window == args.window && key.both_ways == args.both_ways &&
         std::equal(key.context_lengths.begin(), key.context_lengths.end(), args.context_lengths.host) &&
         std::equal(key.query_offsets.begin(), key.query_offsets.end(), args.query_offsets.host);
}

void AttentionSchedule::find_plan(const PagedAttentionArgs& args) {
  const auto found = std::ranges::find_if(plans_, [&](const Plan& plan) { return is_of(plan, args); });
  if (found != plans_.end()) {
    now_ = &*found;
  } else {
    if (plans_.size() < kMostPlans) plans_.emplace_back();
    now_ = &*std::ranges::min_element(plans_, {}, &Plan::last_used);
    make_plan(args);
  }
  now_->last_used = ++calls_;
}

void AttentionSchedule::make_plan(const PagedAttentionArgs& args) {
  ++plans_made_;
  Plan& plan = *now_;
  plan.key.num_heads = args.num_heads;
  plan.key.num_kv_heads = args.cache.num_kv_heads;
  plan.key.group = args.group;
  plan.key.heads_before = args.heads_before;
  plan.key.head_dim = args.cache.head_dim;
  plan.key.block_size = args.cache.block_size;
  plan.key.window = args.window;
  plan.key.both_ways = args.both_ways;
  plan.key.query_offsets.assign(args.query_offsets.host, args.query_offsets.host + args.num_sequences + 1);
  plan.key.context_lengths.assign(args.context_lengths.host, args.context_lengths.host + args.num_sequences);
  plan.items.clear();
  plan.tasks.clear();
  plan.partials_used = 0;
  plan.unfinished_used = 0;
  plan.work = 0;
  plan.split_tokens = split_tokens(args.cache.block_size);
  for (int32_t s = 0; s < args.num_sequences; ++s) plan_sequence(args, s);

  if (plan.unfinished_used > unfinished_capacity_) {
    unfinished_capacity_ = 2 * plan.unfinished_used;
    unfinished_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(unfinished_capacity_));
  }
}

void AttentionSchedule::plan_sequence(const PagedAttentionArgs& args, int32_t sequence) {
  const int32_t begin = args.query_offsets.host[sequence];
  const int32_t num_queries = args.query_offsets.host[sequence + 1] - begin;
  if (num_queries == 0) return;
  const int32_t head_dim = args.cache.head_dim;
  const int32_t group = heads_of_group(args);
  const auto max_rows = static_cast<int32_t>(std::min(kMaxRows, kMaxRowFloats / head_dim));
  const int32_t heads = std::min(group, max_rows);
  const int32_t tokens = std::min(kMaxTokens, max_rows / heads);

  // The tokens with the longest context first: the short ones then even out the threads.
  for (int32_t tile = (num_queries - 1) / tokens; tile >= 0; --tile) {
    const size_t first_item = now_->items.size();
    for (int32_t kv_head = 0; kv_head < args.cache.num_kv_heads; ++kv_head) {
      const int32_t first_head = std::max(0, kv_head * group - args.heads_before);
      const int32_t end_head = std::min(args.num_heads, (kv_head + 1) * group - args.heads_before);
      for (int32_t head = first_head; head < end_head; head += heads) {
        Item item{};
        item.sequence = sequence;
        item.first_token = begin + tile * tokens;
        item.num_tokens = std::min(tokens, num_queries - tile * tokens);
        item.kv_head = kv_head;
        item.first_head = head;
        item.num_heads = std::min(heads, end_head - head);
        add_item(args, item, num_queries);
      }
    }
    add_tasks(first_item);
  }
}

void AttentionSchedule::add_item(const PagedAttentionArgs& args, Item item, int32_t num_queries) {
  const int32_t end = args.query_offsets.host[item.sequence + 1];
  item.first_position = args.context_lengths.host[item.sequence] - (end - item.first_token);
  const int64_t last = last_seen(args, item.first_position + item.num_tokens - 1, context_of(args, item.sequence));
  const int64_t first = first_seen(args, item.first_position);
  item.first_split = first / now_->split_tokens;
  item.num_splits = last / now_->split_tokens - item.first_split + 1;
  const int64_t rows = int64_t{item.num_tokens} * item.num_heads;
  now_->work += rows * args.cache.head_dim * (last - first + 1);

  item.partials = -1;
  const int64_t partial_floats = item.num_splits * rows * (args.cache.head_dim + 2);
  const bool few_rows = num_queries <= kMaxTokens;
  if (few_rows && item.num_splits > 1 && pool_.num_threads() > 1 &&
      now_->partials_used + partial_floats <= kPartialFloats) {
    item.partials = now_->partials_used;
    item.unfinished = now_->unfinished_used++;
    now_->partials_used += partial_floats;
  }
  now_->items.push_back(item);
}

// Tasks of the items from first_item on, which are the heads of the same tokens. The heads of a block lie beside each
// other in memory, so one split of all of them comes before the next split.
void AttentionSchedule::add_tasks(size_t first_item) {
  const int64_t num_splits = now_->items[first_item].num_splits;
  for (int32_t split = 0; split < num_splits; ++split) {
    for (size_t index = first_item; index < now_->items.size(); ++index) {
      const auto item = static_cast<int32_t>(index);
      if (now_->items[index].partials >= 0) {
        now_->tasks.push_back({item, split});
      } else if (split == 0) {
        now_->tasks.push_back({item, -1});
      }
    }
  }
}

void AttentionSchedule::run_task(const PagedAttentionArgs& args, int64_t index, const ThreadScratch& scratch) {
  const Task& task = now_->tasks[static_cast<size_t>(index)];
  const Item& item = now_->items[static_cast<size_t>(task.item)];
  const int32_t head_dim = args.cache.head_dim;
  scale_queries(args, item, scratch.queries);
  if (item.partials < 0) {
    if (item.num_splits == 1) {
      run_split(args, index, 0, scratch, scratch.partial);
      finish(args, item, scratch.partial);
      return;
    }
    std::fill_n(scratch.total.sum, item.num_tokens * item.num_heads, 0.0f);
    for (int64_t split = 0; split < item.num_splits; ++split) {
      run_split(args, index, split, scratch, scratch.partial);
      fold(args, item, split, scratch.partial, scratch.total);
    }
    finish(args, item, scratch.total);
    return;
  }
  run_split(args, index, task.split, scratch, stored_partial(item, task.split, head_dim));
  std::atomic<int64_t>& unfinished = unfinished_[static_cast<size_t>(item.unfinished)];
  if (unfinished.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::fill_n(scratch.total.sum, item.num_tokens * item.num_heads, 0.0f);
  for (int64_t split = 0; split < item.num_splits; ++split)
    fold(args, item, split, stored_partial(item, split, head_dim), scratch.total);
  finish(args, item, scratch.total);
}

void AttentionSchedule::scale_queries(const PagedAttentionArgs& args, const Item& item, float* queries) const {
  const int32_t head_dim = args.cache.head_dim;
  const int64_t row_floats = int64_t{item.num_heads} * head_dim;
  for (int64_t t = 0; t < item.num_tokens; ++t) {
    const float* from = args.queries + (item.first_token + t) * args.query_stride + int64_t{item.first_head} * head_dim;
    float* to = queries + t * row_floats;
    std::memcpy(to, from, static_cast<size_t>(row_floats) * sizeof(float));
    kernels_.scale(to, args.scale, /*soft_cap=*/0, /*limit=*/0, row_floats);
  }
}

// Tasks are handed out in turn, so while this one runs the others take those after it.
void AttentionSchedule::fetch_next(const PagedAttentionArgs& args, int64_t index, AttentionWork& work) const {
  const auto next = static_cast<size_t>(index + (now_->work < kMinParallelWork ? 1 : pool_.num_threads()));
  if (next >= now_->tasks.size()) return;
  const KvCacheView& cache = args.cache;
  const Item& item = now_->items[static_cast<size_t>(now_->tasks[next].item)];
  const int64_t begin = (item.first_split + std::max(now_->tasks[next].split, 0)) * now_->split_tokens;
  work.next_keys = static_cast<const uint8_t*>(cache.keys) + item.kv_head * head_bytes(cache);
  if (!cache.values_are_keys)
    work.next_values = static_cast<const uint8_t*>(cache.values) + item.kv_head * head_bytes(cache);
  work.next_block_table = args.block_tables.host + item.sequence * args.block_table_stride;
  work.next_begin = std::max(begin, first_seen(args, item.first_position));
  const int64_t last = last_seen(args, item.first_position + item.num_tokens - 1, context_of(args, item.sequence));
  work.next_end = std::min(begin + now_->split_tokens, last + 1);
}

void AttentionSchedule::run_split(const PagedAttentionArgs& args, int64_t index, int64_t split,
                                  const ThreadScratch& scratch, const Partial& result) const {
  const Item& item = now_->items[static_cast<size_t>(now_->tasks[static_cast<size_t>(index)].item)];
  const KvCacheView& cache = args.cache;
  AttentionWork work{};
  work.queries = scratch.queries;
  work.num_tokens = item.num_tokens;
  work.num_heads = item.num_heads;
  work.first_position = item.first_position;
  work.window = args.window;
  work.context = args.both_ways ? context_of(args, item.sequence) : 0;
  work.soft_cap = args.soft_cap;
  work.split_begin = (item.first_split + split) * now_->split_tokens;
  work.split_end = work.split_begin + now_->split_tokens;
  work.dtype = cache.dtype;
  work.keys = static_cast<const uint8_t*>(cache.keys) + item.kv_head * head_bytes(cache);
  if (!cache.values_are_keys)
    work.values = static_cast<const uint8_t*>(cache.values) + item.kv_head * head_bytes(cache);
  work.block_stride = block_stride(cache);
  work.block_table = args.block_tables.host + item.sequence * args.block_table_stride;
  work.block_size = cache.block_size;
  work.head_dim = cache.head_dim;
  work.scores = scratch.scores;
  work.widened = scratch.widened;
  fetch_next(args, index, work);
  work.maximum = result.maximum;
  work.sum = result.sum;
  work.weighted = result.weighted;
  kernels_.attention(work);
}

void AttentionSchedule::fold(const PagedAttentionArgs& args, const Item& item, int64_t split, const Partial& partial,
                             const Partial& total) const {
  const int64_t begin = (item.first_split + split) * now_->split_tokens;
  // The tokens that see something of the split are neighbours.
  int64_t first = 0;
  const int64_t context = context_of(args, item.sequence);
  while (first < item.num_tokens && last_seen(args, item.first_position + first, context) < begin) ++first;
  int64_t end = first;
  while (end < item.num_tokens && first_seen(args, item.first_position + end) < begin + now_->split_tokens) ++end;
  const int64_t row = first * item.num_heads;
  const int32_t head_dim = args.cache.head_dim;
  kernels_.attention_fold(total.maximum + row, total.sum + row, total.weighted + row * head_dim, partial.maximum + row,
                          partial.sum + row, partial.weighted + row * head_dim, (end - first) * item.num_heads,
                          head_dim);
}

void AttentionSchedule::finish(const PagedAttentionArgs& args, const Item& item, const Partial& total) const {
  const int32_t head_dim = args.cache.head_dim;
  for (int64_t t = 0; t < item.num_tokens; ++t) {
    float* out = args.out + ((item.first_token + t) * args.num_heads + item.first_head) * head_dim;
    for (int64_t h = 0; h < item.num_heads; ++h) {
      const int64_t row = t * item.num_heads + h;
      float sum = total.sum[row];
      if (args.sinks != nullptr) sum += std::exp(args.sinks[item.first_head + h] - total.maximum[row]);
      kernels_.attention_finish(total.weighted + row * head_dim, sum, head_dim, out + h * head_dim);
    }
  }
}

}  // namespace quire::ops::cpu
