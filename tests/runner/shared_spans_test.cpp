#include "runner/shared_spans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "ops/reference/reference_backend.h"
#include "runner/input_batch.h"
#include "tests/runner/dry_backend.h"

namespace quire::runner {
namespace {

constexpr int32_t kSpan = ops::kSharedSpan;

// Blocks [first, first + count).
std::vector<BlockId> blocks(BlockId first, int32_t count) {
  std::vector<BlockId> table;
  for (int32_t i = 0; i < count; ++i) table.push_back(first + i);
  return table;
}

std::vector<BlockId> operator+(std::vector<BlockId> table, const std::vector<BlockId>& more) {
  table.insert(table.end(), more.begin(), more.end());
  return table;
}

// The groups of a span, smallest reader first.
std::set<std::vector<int32_t>> groups(SharedSpans& shared, size_t num_readers, int32_t span) {
  std::set<std::vector<int32_t>> all;
  const auto* places = shared.places().data() + static_cast<size_t>(span) * num_readers;
  for (size_t i = 0; i < num_readers; i += static_cast<size_t>(places[i].size)) {
    std::vector<int32_t> members;
    for (int32_t m = 0; m < places[i].size; ++m) members.push_back(places[i + static_cast<size_t>(m)].sequence);
    std::ranges::sort(members);
    if (members.size() > 1) all.insert(members);
  }
  return all;
}
using Groups = std::set<std::vector<int32_t>>;

TEST(SharedSpans, SequencesOfOnePrefixAreAGroupAsFarAsAllOfThemAreInIt) {
  const auto system = blocks(0, 40);  // of 16: two spans and a half
  const std::vector<std::vector<BlockId>> tables = {system + blocks(100, 10), blocks(200, 50), system + blocks(300, 2),
                                                    system + blocks(400, 1), blocks(0, 20) + blocks(500, 30)};
  const std::vector<SpanReader> readers = {
      {tables[0], 700, 1}, {tables[1], 700, 1}, {tables[2], 650, 3}, {tables[3], 511, 1}, {tables[4], 700, 1}};
  SharedSpans shared;
  const SharedSpans::Reads reads = shared.find(readers, 16, 3);
  EXPECT_EQ(groups(shared, 5, 0), (Groups{{0, 2, 3, 4}}));
  EXPECT_EQ(groups(shared, 5, 1), (Groups{{0, 2}}));  // 3 is not past it, 4 has other blocks
  EXPECT_EQ(groups(shared, 5, 2), Groups());
  EXPECT_EQ(reads.saved, 3 + 1);
  EXPECT_EQ(reads.all, 3 + 3 + 3 + 2 + 3);
  const auto& places = shared.places();
  ASSERT_EQ(places.size(), 15u);
  EXPECT_EQ(places[1].sequence, 2);
  EXPECT_EQ(places[2].queries_before, 1 + 3);
}

TEST(SharedSpans, NeitherPromptsNorWhatAWindowHasLeftBehindIsShared) {
  const auto all = blocks(0, 48);
  auto behind = all;
  std::fill_n(behind.begin(), 17, kNoBlock);  // the first span, and the second's first block
  const std::vector<SpanReader> readers = {{all, 768, 1}, {behind, 768, 1}, {all, 768, 256}, {behind, 768, 1}};
  SharedSpans shared;
  EXPECT_EQ(shared.find(readers, 16, 3).saved, 1);
  EXPECT_EQ(groups(shared, 4, 0), Groups());
  EXPECT_EQ(groups(shared, 4, 1), Groups());
  EXPECT_EQ(groups(shared, 4, 2), (Groups{{1, 3}}));  // 0 has shared nothing with anybody before
}

TEST(SharedSpans, BlocksMayBeLargerThanASpanOrLieAcrossItsEnd) {
  const auto table = blocks(0, 10);
  auto other = table;
  other[2] = 90;  // of 100 positions: the end of span 0, the beginning of span 1
  const std::vector<SpanReader> readers = {{table, 900, 1}, {other, 900, 1}, {table, 900, 1}};
  SharedSpans shared;
  shared.find(readers, 100, 3);
  EXPECT_EQ(groups(shared, 3, 0), (Groups{{0, 2}}));
  EXPECT_EQ(groups(shared, 3, 1), (Groups{{0, 2}}));
  shared.find(readers, 1000, 2);
  EXPECT_EQ(groups(shared, 3, 1), (Groups{{0, 1, 2}}));
}

TEST(SharedSpans, SavesNothingThatNobodyWaitsFor) {
  const auto table = blocks(0, 32);
  const auto other = blocks(50, 32);
  const std::vector<SpanReader> readers = {{table, 400, 1}, {other, 400, 1}, {table, 400, 1, false}};
  SharedSpans shared;
  const SharedSpans::Reads reads = shared.find(readers, 16, 1);
  EXPECT_EQ(reads.saved, 0);
  EXPECT_EQ(reads.all, 4);
  EXPECT_EQ(groups(shared, 3, 0), (Groups{{0, 2}}));
}

// Tables that fork somewhere, as those of a prefix cache do.
TEST(SharedSpans, FindWhatComparingEveryPairFinds) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 engine(seed);
  const auto between = [&](int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine);
  };
  SharedSpans shared;
  for (int round = 0; round < 200; ++round) {
    const int32_t block_size = std::vector<int32_t>{1, 5, 16, 32, 100, 256, 300}[static_cast<size_t>(between(0, 6))];
    const int32_t num_blocks = 5 * kSpan / block_size + 1;
    std::vector<std::vector<BlockId>> tables;
    std::vector<SpanReader> readers;
    BlockId next = 0;
    const int32_t n = between(1, 20);
    for (int32_t r = 0; r < n; ++r) {
      const int32_t same = r == 0 ? 0 : between(0, num_blocks);
      std::vector<BlockId> table = r == 0 ? std::vector<BlockId>() : tables[static_cast<size_t>(between(0, r - 1))];
      table.resize(static_cast<size_t>(same));
      while (std::ssize(table) < num_blocks) table.push_back(next++);
      tables.push_back(table);
    }
    for (const auto& table : tables)
      readers.push_back({table, between(0, num_blocks * block_size - 20), between(1, 10)});
    const int32_t num_spans = between(0, num_blocks * block_size / kSpan);
    const int64_t saved = shared.find(readers, block_size, num_spans).saved;
    ASSERT_EQ(shared.places().size(), static_cast<size_t>(num_spans * n));
    int64_t expected_saved = 0;
    for (int32_t span = 0; span < num_spans; ++span) {
      std::map<std::vector<BlockId>, std::vector<int32_t>> expected;
      for (int32_t r = 0; r < n; ++r) {
        const SpanReader& reader = readers[static_cast<size_t>(r)];
        if (reader.num_computed < (span + 1) * kSpan || reader.num_queries > ops::kMostSharedQueries) continue;
        const auto begin = reader.table.begin() + span * kSpan / block_size;
        const auto end = reader.table.begin() + ((span + 1) * kSpan - 1) / block_size + 1;
        expected[{begin, end}].push_back(r);
      }
      Groups all;
      for (const auto& [key, members] : expected) {
        if (members.size() > 1) all.insert(members);
        expected_saved += std::ssize(members) - 1;
      }
      ASSERT_EQ(groups(shared, static_cast<size_t>(n), span), all) << "round " << round << ", span " << span;
      std::set<int32_t> once;
      for (int32_t i = 0; i < n; ++i) once.insert(shared.places()[static_cast<size_t>(span * n + i)].sequence);
      ASSERT_EQ(once.size(), static_cast<size_t>(n));
    }
    ASSERT_EQ(saved, expected_saved);
  }
}

// Of a device that is spared something by it.
class Sharing : public DryBackend {
 public:
  using DryBackend::DryBackend;
  bool shares_spans() const override { return true; }
};

TEST(InputBatch, TellsWhoSharesWhereThatSavesMuch) {
  const auto real = ops::make_reference_backend();
  Sharing backend(*real);
  std::unordered_map<SequenceId, SequenceState> states;
  const auto params = std::make_shared<const SamplingParams>();
  const std::vector<TokenId> prompt(800, 1);
  StepPlan plan;
  const auto tell = [&states](SequenceId id, int32_t group, const std::vector<BlockId>& table) {
    const auto size = static_cast<int32_t>(table.size());
    states.at(id).tables.take({.id = id, .group = group, .num_blocks = size, .count = size}, table);
  };
  // Two groups: of the first all but sequence 1 share 40 blocks.
  for (SequenceId id = 0; id < 5; ++id) {
    states.emplace(id, SequenceState{.tokens = sampling::TokenHistory(prompt),
                                     .num_prompt_tokens = 800,
                                     .params = params,
                                     .sampler = {params, prompt, 1, 10, {}, {}},
                                     .tables = {},
                                     .fault = {}});
    const auto own = static_cast<BlockId>(id) * 100;
    plan.scheduled.push_back({.id = id, .num_computed_tokens = id == 1 ? 700 : 600, .num_new_tokens = 1});
    tell(id, 0, blocks(id == 1 ? own : 0, 40) + blocks(own + 40, 10));
    tell(id, 1, blocks(own + 50, 50));
  }
  const auto check = [&](InputBatch& batch, size_t n) {
    batch.build(plan, states, 16);
    const nn::Batch view = batch.view({});
    ASSERT_EQ(view.num_shared_spans, batch.shape() ? 4 : 3);  // of 50 blocks, or 64 of the shape
    float floats[4] = {};
    for (const nn::CacheGroup& group : view.groups) {
      ops::check(ops::PagedAttentionArgs{.queries = floats,
                                         .query_stride = 2,
                                         .num_heads = 1,
                                         .cache = {.keys = floats,
                                                   .values = floats,
                                                   .dtype = DType::kF32,
                                                   .num_blocks = 500,
                                                   .num_kv_heads = 1,
                                                   .head_dim = 2,
                                                   .block_size = 16},
                                         .num_sequences = view.num_sequences,
                                         .query_offsets = view.query_offsets,
                                         .context_lengths = view.context_lengths,
                                         .block_tables = group.block_tables,
                                         .block_table_stride = view.block_table_stride,
                                         .span_places = group.span_places,
                                         .num_shared_spans = view.num_shared_spans,
                                         .out = floats});
    }
    const ops::SpanPlace* places = view.groups[0].span_places.host;
    for (const size_t span : {0u, 1u}) {
      // Who fills up the shape does as the first sequence does.
      EXPECT_EQ(places[span * n].size, static_cast<int32_t>(n) - 1);
      EXPECT_EQ(places[span * n + n - 1].sequence, 1);
    }
    EXPECT_EQ(places[2 * n].size, 1);
    EXPECT_EQ(view.groups[1].span_places.host[0].size, batch.shape() ? 4 : 1);
  };
  InputBatch batch(backend, 2);
  check(batch, 5);
  batch.use_shapes(StepShapes(8, 4096, 16, 64), 64);
  check(batch, 8);
  EXPECT_EQ(batch.shape(), StepShape(DecodeShape{8, 64, true}));

  InputBatch of_host(*real, 2);
  of_host.build(plan, states, 16);
  EXPECT_EQ(of_host.view({}).num_shared_spans, 0);

  for (const SequenceId id : {3u, 4u}) {
    for (const int32_t group : {0, 1}) tell(id, group, blocks(static_cast<BlockId>(id) * 100 + 50 * group, 50));
  }
  batch.build(plan, states, 16);
  EXPECT_EQ(batch.shape(), StepShape(DecodeShape{8, 64, false}));
  EXPECT_EQ(batch.view({}).num_shared_spans, 0);
}

}  // namespace
}  // namespace quire::runner
