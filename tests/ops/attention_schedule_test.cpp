// How attention over a paged cache is planned, and what is checked of a step's tables.
#include "ops/cpu/attention_schedule.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/cpu/isa.h"

namespace quire::ops {
namespace {

// Two sequences of one query each over caches of zeros.
class TwoSequences {
 public:
  PagedAttentionArgs args(int32_t window) {
    PagedAttentionArgs args;
    args.queries = queries_.data();
    args.query_stride = kHeads * kHeadDim;
    args.num_heads = kHeads;
    args.cache = {.keys = keys_.data(),
                  .values = values_.data(),
                  .dtype = DType::kF32,
                  .num_blocks = 4,
                  .num_kv_heads = kHeads,
                  .head_dim = kHeadDim,
                  .block_size = kBlockSize};
    args.num_sequences = 2;
    args.query_offsets = offsets_.data();
    args.context_lengths = lengths_.data();
    args.block_tables = tables_.data();
    args.block_table_stride = 2;
    args.window = window;
    args.out = out_.data();
    return args;
  }
  void grow() {
    for (int32_t& length : lengths_) ++length;
  }
  void set_block(size_t index, BlockId block) { tables_[index] = block; }

 private:
  static constexpr int32_t kHeads = 2, kHeadDim = 8, kBlockSize = 16;
  static constexpr size_t kCacheFloats = 4 * kBlockSize * kHeads * kHeadDim;
  std::vector<float> queries_ = std::vector<float>(2 * kHeads * kHeadDim);
  std::vector<float> out_ = queries_;
  std::vector<float> keys_ = std::vector<float>(kCacheFloats), values_ = keys_;
  std::vector<int32_t> offsets_{0, 1, 2}, lengths_{20, 25};
  std::vector<BlockId> tables_{0, 1, 2, 3};
};

TEST(AttentionSchedule, LayersWhoseWindowsAlternateArePlannedOnceAStepEach) {
  ThreadPool pool({.num_threads = 1});
  std::vector<float> scratch(static_cast<size_t>(cpu::AttentionSchedule::scratch_bytes(1)) / sizeof(float));
  const auto kernels = cpu::select_kernels(Isa::kPortable);
  ASSERT_TRUE(kernels.ok());
  cpu::AttentionSchedule schedule(**kernels, pool, scratch.data());
  TwoSequences sequences;
  for (int64_t step = 1; step <= 5; ++step) {
    for (int layer = 0; layer < 6; ++layer) schedule.run(sequences.args(layer % 2 == 0 ? 0 : 8));
    EXPECT_EQ(schedule.plans_made(), 2 * step);
    sequences.grow();
  }
}

TEST(PagedAttentionChecks, TablesThatWereCheckedForTheStepAreNotWalkedInEveryLayer) {
  TwoSequences sequences;
  check(sequences.args(0));
  sequences.set_block(2, 4);
  PagedAttentionArgs args = sequences.args(0);
  EXPECT_DEATH(check(args), "sequence 1: block 0 of its table is 4, the cache has 4");
  EXPECT_DEATH(check_tables(args), "sequence 1: block 0 of its table is 4, the cache has 4");
  args.tables_checked = true;
  check(args);
}

}  // namespace
}  // namespace quire::ops
