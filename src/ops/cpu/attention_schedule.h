// How one call of paged attention is cut into tasks for the pool, and its scratch.
//
// An item is a few tokens of one sequence and the heads (or some of them) of one kv head. Its context is cut into
// splits at absolute positions, whose partial softmaxes are folded in rising order. Where an item has several splits
// and few rows (decode over a long context) each split is a task of its own and the last one to finish folds; otherwise
// one task takes the splits in turn. Both ways fold the same partials in the same order: the same bits.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/paged_attention.h"
#include "tensor/tensor.h"

namespace quire::ops::cpu {

class AttentionSchedule {
 public:
  // Bytes that the scratch of this many threads takes.
  static int64_t scratch_bytes(int num_threads);

  // REQUIRES: scratch is scratch_bytes(pool.num_threads()) bytes, 64-byte aligned, and outlives this object.
  AttentionSchedule(const Kernels& kernels, ThreadPool& pool, float* scratch);

  // REQUIRES: head_dim <= kMaxHeadDim.
  void run(const PagedAttentionArgs& args);

  static constexpr int32_t kMaxHeadDim = 1024;

  // Plans made so far: one a step for each kind of layer, however the kinds alternate.
  int64_t plans_made() const { return plans_made_; }

 private:
  struct Item {
    int32_t sequence;
    int32_t first_token;  // within the batch
    int32_t num_tokens;
    int32_t kv_head;
    int32_t first_head;
    int32_t num_heads;
    int64_t first_position;
    int64_t first_split;
    int64_t num_splits;
    int64_t partials;    // offset in partials_, -1: one task takes all splits
    int64_t unfinished;  // index in unfinished_
  };
  struct Task {
    int32_t item;
    int32_t split;  // -1: all
  };
  // Maxima, sums and weighted values of the rows of one item over one split.
  struct Partial {
    float* maximum;
    float* sum;
    float* weighted;
  };
  struct ThreadScratch;

  // What a plan depends on: between the layers of a step only pointers change, and the plan stays.
  struct Key {
    int32_t num_heads = 0;
    int32_t num_kv_heads = 0;
    int32_t group = 0;
    int32_t heads_before = 0;
    int32_t head_dim = 0;
    int32_t block_size = 0;
    int32_t window = 0;
    bool both_ways = false;
    std::vector<int32_t> query_offsets;
    std::vector<int32_t> context_lengths;
  };

  struct Plan {
    Key key;
    int64_t last_used = 0;  // the call of run()
    int64_t work = 0;       // multiply-adds of the scores
    int64_t split_tokens = 0;
    int64_t partials_used = 0;
    int64_t unfinished_used = 0;
    std::vector<Item> items;
    std::vector<Task> tasks;
  };

  // Kinds of layers whose plans stay: windows of two widths and none, with one to spare.
  static constexpr size_t kMostPlans = 4;

  static bool is_of(const Plan& plan, const PagedAttentionArgs& args);
  // The plan of these sequences, made where there is none. In now_ afterwards.
  void find_plan(const PagedAttentionArgs& args);
  void make_plan(const PagedAttentionArgs& args);
  void plan_sequence(const PagedAttentionArgs& args, int32_t sequence);
  void add_item(const PagedAttentionArgs& args, Item item, int32_t num_queries);
  void add_tasks(size_t first_item);
  void run_task(const PagedAttentionArgs& args, int64_t index, const ThreadScratch& scratch);
  void fetch_next(const PagedAttentionArgs& args, int64_t index, AttentionWork& work) const;
  void scale_queries(const PagedAttentionArgs& args, const Item& item, float* queries) const;
  // `index` of the task.
  void run_split(const PagedAttentionArgs& args, int64_t index, int64_t split, const ThreadScratch& scratch,
                 const Partial& result) const;
  void fold(const PagedAttentionArgs& args, const Item& item, int64_t split, const Partial& partial,
            const Partial& total) const;
  void finish(const PagedAttentionArgs& args, const Item& item, const Partial& total) const;
  Partial stored_partial(const Item& item, int64_t index, int32_t head_dim) const;
  ThreadScratch thread_scratch(int thread) const;

  const Kernels& kernels_;
  ThreadPool& pool_;
  float* scratch_;
  float* partials_;
  std::vector<Plan> plans_;
  Plan* now_ = nullptr;  // of plans_: the plan that runs
  int64_t calls_ = 0;
  int64_t plans_made_ = 0;
  std::unique_ptr<std::atomic<int64_t>[]> unfinished_;
  int64_t unfinished_capacity_ = 0;
};

}  // namespace quire::ops::cpu
