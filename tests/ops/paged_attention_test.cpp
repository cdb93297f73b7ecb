#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>

#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::kDevices;
using testing::largest_difference;
using testing::Random;
using testing::same_bits;

struct Shapes {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t block_size;
  int32_t window = 0;
  bool values_are_keys = false;
  float soft_cap = 0;
  bool sinks = false;
  int32_t value_dim = 0;    // 0: head_dim
  int64_t spare_bytes = 0;  // between a block and the next, at least
};

// Sequences in a paged cache whose blocks lie in random order. Slots that no token has written hold NaN: reading one
// shows.
class PagedSequences {
 public:
  PagedSequences(Backend& backend, const Shapes& shapes, DType dtype, std::vector<int32_t> lengths, Random& random)
      : shapes_(shapes), dtype_(dtype), lengths_(std::move(lengths)), keys_by_token_(backend.keys_by_token()) {
    for (const int32_t length : lengths_) {
      stride_ = std::max<int64_t>(stride_, (length + shapes.block_size - 1) / shapes.block_size);
    }
    const int64_t num_blocks = stride_ * static_cast<int64_t>(lengths_.size()) + 2;
    std::vector<BlockId> free(static_cast<size_t>(num_blocks));
    std::iota(free.begin(), free.end(), 0);
    for (size_t i = free.size(); i > 1; --i)
      std::swap(free[i - 1], free[static_cast<size_t>(random.between(0, static_cast<int64_t>(i) - 1))]);
    tables_.assign(static_cast<size_t>(stride_) * lengths_.size(), -1);
    num_blocks_ = num_blocks;
    // All ones are NaN in every float format, and so is a scale of them.
    keys_.assign(static_cast<size_t>(num_blocks * block_stride(cache())), 0xff);
    values_ = keys_;
    for (size_t s = 0; s < lengths_.size(); ++s) fill(backend, s, free, random);
  }

  KvCacheView cache() {
    KvCacheView view{keys_.data(),
                     shapes_.values_are_keys ? nullptr : values_.data(),
                     dtype_,
                     num_blocks_,
                     shapes_.num_kv_heads,
                     shapes_.head_dim,
                     shapes_.block_size,
                     shapes_.values_are_keys,
                     keys_by_token_};
    if (shapes_.spare_bytes > 0) view.stride = (block_bytes(view) + shapes_.spare_bytes + 3) / 4 * 4;
    return view;
  }
  // Whether the bytes between blocks are what they were.
  bool left_spare_bytes() {
    const int64_t size = block_bytes(cache());
    for (int64_t at = 0; at < std::ssize(keys_); ++at) {
      const auto i = static_cast<size_t>(at);
      if (at % block_stride(cache()) >= size && (keys_[i] != 0xff || values_[i] != 0xff)) return false;
    }
    return true;
  }

  bool both_ways = false;  // of the queries
  // Of the first and the last kv head's group, heads that are left out.
  int32_t heads_before = 0;
  int32_t heads_after = 0;
  // Numbers between the queries of a token and the next. Tensor cores want pairs.
  int64_t query_gap = 5;

  const std::vector<float>& queries(size_t sequence) const { return queries_[sequence]; }

  // Attention of the last `counts[i]` tokens before position ends[i] of each named sequence, in one batch.
  std::vector<float> attend(Backend& backend, const std::vector<size_t>& sequences, const std::vector<int32_t>& ends,
                            const std::vector<int32_t>& counts, const std::vector<SpanPlace>& places = {}) {
    const int32_t num_heads = shapes_.num_heads - heads_before - heads_after;
    const int64_t token_floats = int64_t{num_heads} * shapes_.head_dim;
    const int64_t query_stride = token_floats + query_gap;
    std::vector<float> queries;
    std::vector<int32_t> offsets = {0};
    std::vector<BlockId> tables;
    for (size_t i = 0; i < sequences.size(); ++i) {
      for (int32_t position = ends[i] - counts[i]; position < ends[i]; ++position) {
        const auto from =
            queries_[sequences[i]].begin() + (int64_t{position} * shapes_.num_heads + heads_before) * shapes_.head_dim;
        queries.insert(queries.end(), from, from + token_floats);
        queries.insert(queries.end(), static_cast<size_t>(query_gap), std::numeric_limits<float>::quiet_NaN());
      }
      offsets.push_back(offsets.back() + counts[i]);
      const auto table = tables_.begin() + static_cast<int64_t>(sequences[i]) * stride_;
      tables.insert(tables.end(), table, table + stride_);
    }
    std::vector<float> out(static_cast<size_t>(offsets.back() * token_floats));
    PagedAttentionArgs args;
    args.queries = queries.data();
    args.query_stride = query_stride;
    args.num_heads = num_heads;
    if (num_heads < shapes_.num_heads) args.group = shapes_.num_heads / shapes_.num_kv_heads;
    args.heads_before = heads_before;
    args.cache = cache();
    args.num_sequences = static_cast<int32_t>(sequences.size());
    args.query_offsets = offsets.data();
    args.context_lengths = ends.data();
    args.block_tables = tables.data();
    args.block_table_stride = stride_;
    if (!places.empty()) args.span_places = places.data();
    args.num_shared_spans = static_cast<int32_t>(places.size() / sequences.size());
    args.scale = 1.0f / std::sqrt(static_cast<float>(shapes_.head_dim));
    args.window = shapes_.window;
    args.soft_cap = shapes_.soft_cap;
    // From a score that nothing notices to one that takes most of the weight.
    std::vector<float> sinks;
    for (int32_t h = 0; h < shapes_.num_heads; ++h) sinks.push_back(-4.0f + 3.0f * static_cast<float>(h));
    if (shapes_.sinks) args.sinks = sinks.data() + heads_before;
    args.both_ways = both_ways;
    args.out = out.data();
    args.value_dim = shapes_.value_dim;
    backend(args);
    if (shapes_.value_dim == 0) return out;
    for (auto head = out.begin(); head != out.end(); head += shapes_.head_dim)
      std::fill(head + shapes_.value_dim, head + shapes_.head_dim, 0.0f);
    return out;
  }

 private:
  void fill(Backend& backend, size_t sequence, std::vector<BlockId>& free, Random& random) {
    const int32_t length = lengths_[sequence];
    BlockId* table = tables_.data() + static_cast<int64_t>(sequence) * stride_;
    std::vector<int64_t> slots;
    for (int32_t position = 0; position < length; ++position) {
      if (position % shapes_.block_size == 0) {
        table[position / shapes_.block_size] = free.back();
        free.pop_back();
      }
      slots.push_back(int64_t{table[position / shapes_.block_size]} * shapes_.block_size +
                      position % shapes_.block_size);
    }
    const int64_t token_floats = int64_t{shapes_.num_kv_heads} * shapes_.head_dim;
    // Keys and values side by side, as a merged projection leaves them.
    const std::vector<float> kv = random.normals(length * 2 * token_floats);
    KvWriteArgs write;
    write.keys = kv.data();
    write.values = shapes_.values_are_keys ? nullptr : kv.data() + token_floats;
    write.token_stride = 2 * token_floats;
    write.num_tokens = length;
    write.slots = slots.data();
    write.cache = cache();
    backend(write);
    queries_.push_back(random.normals(int64_t{length} * shapes_.num_heads * shapes_.head_dim, 2.0f));
  }

  Shapes shapes_;
  DType dtype_;
  std::vector<int32_t> lengths_;
  bool keys_by_token_;  // as the backend that fills it wants them
  int64_t stride_ = 1;
  int64_t num_blocks_ = 0;
  std::vector<BlockId> tables_;
  std::vector<uint8_t> keys_;
  std::vector<uint8_t> values_;
  std::vector<std::vector<float>> queries_;
};

const std::vector<Shapes> kShapes = {
    {9, 3, 64, 16},                        // SmolLM2-135M
    {4, 2, 16, 16},                        // tiny models
    {8, 1, 128, 16},                       // one kv head
    {3, 3, 80, 32},                        // no sharing, head of 5 x 16
    {4, 2, 24, 8},                         // three vectors
    {6, 2, 10, 16},                        // a vector and a tail
    {2, 1, 6, 16},                         // tail only
    {5, 1, 256, 4},                        // wide heads, blocks under a vector
    {3, 1, 32, 1},                         // a block a token
    {3, 1, 32, 5},                         // blocks that no vector divides
    {2, 2, 16, 100},                       // blocks larger than a tile
    {2, 1, 16, 128},                       // the same, whole tiles
    {9, 3, 64, 16, 40},                    // a window
    {8, 2, 128, 16, 50},                   // the same over wider heads
    {4, 2, 16, 5, 3},                      // a window under a block
    {4, 2, 16, 100, 150},                  // a window over large blocks
    {6, 2, 20, 8},                         // heads that vectors do not divide, in blocks that they do
    {6, 3, 40, 32, 70},                    // the same under a window
    {4, 1, 20, 1},                         // and a token at a time
    {16, 2, 64, 32},                       // eight rows, two groups of four
    {5, 1, 96, 16},                        // five rows
    {6, 2, 100, 16},                       // heads that vectors do not divide, in the usual blocks
    {12, 1, 64, 16, 50},                   // more rows than are widened in registers
    {7, 7, 40, 48, 33},                    // tiles of one block of three pairs
    {4, 1, 64, 24},                        // blocks of vectors, not of pairs
    {8, 4, 128, 16, 0, false, 2.5f},       // a soft cap
    {6, 2, 26, 16, 45, false, 1.5f},       // under a window, heads with a tail
    {12, 4, 64, 16, 60, false, 0, true},   // sinks under a window
    {5, 1, 34, 24, 0, false, 3.0f, true},  // both
    // Caches of keys alone: latent attention's one head, then what else there may be.
    {22, 1, 72, 16, 0, true},
    {5, 1, 36, 5, 0, true},
    {4, 2, 24, 8, 50, true},
};

// A card that does not round queries, as the others never do; nullptr where there is none.
std::unique_ptr<Backend> make_exact(const std::string& isa, int threads = 2) {
  if (testing::is_card(isa)) return cards::make_card(threads, {.batch_invariant = true});
  return testing::make_backend(isa, threads);
}

class PagedAttentionTest : public ::testing::TestWithParam<std::tuple<std::string, Shapes>> {
 protected:
  const std::string& isa() const { return std::get<0>(GetParam()); }
  const Shapes& shapes() const { return std::get<1>(GetParam()); }
};

// Both read the same stored values: the tolerance is that of the arithmetic in floats, whatever the format.
TEST_P(PagedAttentionTest, AgreesWithTheReferenceForPrefillChunksAndDecodeInOneBatch) {
  auto backend = make_exact(isa());
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << isa();
  auto reference = make_reference_backend();
  for (const DType dtype : testing::kKvFormats) {
    SCOPED_TRACE(name(dtype));
    Random random(11);
    const std::vector<int32_t> ends = {1, 17, 70, 130, 290};
    PagedSequences sequences(*backend, shapes(), dtype, ends, random);
    const std::vector<size_t> all = {0, 1, 2, 3, 4};
    for (const std::vector<int32_t>& counts :
         {std::vector<int32_t>{1, 1, 1, 1, 1}, std::vector<int32_t>{1, 17, 5, 0, 9},
          std::vector<int32_t>{0, 3, 20, 21, 2}}) {
      EXPECT_LT(largest_difference(sequences.attend(*backend, all, ends, counts),
                                   sequences.attend(*reference, all, ends, counts)),
                2e-5);
    }
  }
}

TEST_P(PagedAttentionTest, AgreesWithTheReferenceOverSeveralSplitsOfTheContext) {
  auto backend = make_exact(isa());
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << isa();
  auto reference = make_reference_backend();
  for (const DType dtype : testing::kKvFormats) {
    SCOPED_TRACE(name(dtype));
    Random random(12);
    PagedSequences sequences(*backend, shapes(), dtype, {601}, random);
    for (const int32_t count : {1, 5}) {
      EXPECT_LT(largest_difference(sequences.attend(*backend, {0}, {601}, {count}),
                                   sequences.attend(*reference, {0}, {601}, {count})),
                2e-5);
    }
  }
}

TEST_P(PagedAttentionTest, AgreesWithTheReferenceWhereTextsAreSeenBothWays) {
  auto backend = make_exact(isa());
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << isa();
  auto reference = make_reference_backend();
  for (const DType dtype : testing::kKvFormats) {
    SCOPED_TRACE(name(dtype));
    Random random(14);
    const std::vector<int32_t> lengths = {1, 17, 70, 301, 16};
    PagedSequences sequences(*backend, shapes(), dtype, lengths, random);
    sequences.both_ways = true;
    const std::vector<size_t> all = {0, 1, 2, 3, 4};
    const std::vector<float> together = sequences.attend(*backend, all, lengths, lengths);
    EXPECT_LT(largest_difference(together, sequences.attend(*reference, all, lengths, lengths)), 2e-5);
    // Nor does it matter what else is in the batch.
    std::vector<float> alone;
    for (const size_t one : all) {
      const std::vector<float> rows = sequences.attend(*backend, {one}, {lengths[one]}, {lengths[one]});
      alone.insert(alone.end(), rows.begin(), rows.end());
    }
    EXPECT_TRUE(std::ranges::equal(together, alone));
    // The last queries alone, before which a context stands that sees nothing of them.
    const std::vector<int32_t> counts = {1, 5, 16, 40, 3};
    const std::vector<float> last = sequences.attend(*backend, all, lengths, counts);
    EXPECT_LT(largest_difference(last, sequences.attend(*reference, all, lengths, counts)), 2e-5);
    const int64_t token_floats = int64_t{shapes().num_heads} * shapes().head_dim;
    auto found = last.begin();
    auto whole = together.begin();
    for (const size_t one : all) {
      whole += (lengths[one] - counts[one]) * token_floats;
      for (int64_t i = 0; i < counts[one] * token_floats; ++i) ASSERT_EQ(*found++, *whole++) << one << ", " << i;
    }
  }
}

// A rank of tensor parallel that has parts of groups.
TEST_P(PagedAttentionTest, HeadsHaveTheSameBitsWhereOthersOfTheirGroupAreElsewhere) {
  auto backend = make_exact(isa());
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << isa();
  if (!backend->cuts_groups()) GTEST_SKIP() << isa() << " takes whole groups";
  Random random(14);
  const std::vector<int32_t> ends = {17, 601};
  PagedSequences sequences(*backend, shapes(), DType::kF16, ends, random);
  const int32_t group = shapes().num_heads / shapes().num_kv_heads;
  for (const std::vector<int32_t>& counts : {std::vector<int32_t>{1, 1}, std::vector<int32_t>{9, 40}}) {
    sequences.heads_before = sequences.heads_after = 0;
    const std::vector<float> all = sequences.attend(*backend, {0, 1}, ends, counts);
    for (int32_t before = 0; before < group; ++before) {
      for (int32_t after = 0; after < group; ++after) {
        const int32_t heads = shapes().num_heads - before - after;
        if (heads < 1) continue;
        sequences.heads_before = before;
        sequences.heads_after = after;
        const std::vector<float> some = sequences.attend(*backend, {0, 1}, ends, counts);
        const int64_t own = int64_t{heads} * shapes().head_dim;
        for (int64_t token = 0; token < std::ssize(some) / own; ++token) {
          const auto from = all.begin() + (token * shapes().num_heads + before) * shapes().head_dim;
          ASSERT_TRUE(std::equal(from, from + own, some.begin() + token * own))
              << before << " heads before, " << after << " after, token " << token;
        }
      }
    }
  }
}

TEST_P(PagedAttentionTest, GivesARowTheSameBitsAloneAndInRunsOfAnyChunking) {
  if (cards::is_emulated(isa())) GTEST_SKIP() << "takes an emulated device minutes; tests/ops_cuda shows the same";
  auto backend = make_exact(isa());
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << isa();
  auto one_thread = make_exact(isa(), 1);
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const auto length = static_cast<int32_t>(random.between(250, 700));
  const auto other = static_cast<int32_t>(random.between(1, 90));
  SCOPED_TRACE(::testing::Message() << "length " << length << " beside " << other);
  const int64_t token_floats = int64_t{shapes().num_heads} * shapes().head_dim;
  for (const DType dtype : testing::kKvFormats) {
    SCOPED_TRACE(name(dtype));
    PagedSequences sequences(*backend, shapes(), dtype, {length, other}, random);
    const std::vector<float> whole = sequences.attend(*backend, {0}, {length}, {length});

    for (int round = 0; round < 3; ++round) {
      for (int32_t begin = 0; begin < length;) {
        const auto count =
            static_cast<int32_t>(std::min<int64_t>(length - begin, random.between(1, round == 0 ? 20 : 200)));
        // Beside another sequence, before or after it, or alone on one thread.
        const int64_t shared = random.between(0, 2);
        std::vector<float> out;
        int64_t skip = 0;
        if (shared == 0) {
          out = sequences.attend(*one_thread, {0}, {begin + count}, {count});
        } else if (shared == 1) {
          out = sequences.attend(*backend, {0, 1}, {begin + count, other}, {count, other});
        } else {
          out = sequences.attend(*backend, {1, 0}, {other, begin + count}, {other, count});
          skip = other * token_floats;
        }
        ASSERT_TRUE(same_bits(out.data() + skip, whole.data() + begin * token_floats, count * token_floats))
            << "positions " << begin << " to " << begin + count << ", shared " << shared;
        begin += count;
      }
    }
  }
}

TEST_P(PagedAttentionTest, GivesTheSameBitsWhereOtherBytesLieBetweenTheBlocks) {
  auto backend = make_exact(isa());
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << isa();
  for (const DType dtype : {DType::kF16, DType::kI8}) {
    std::vector<float> dense;
    for (const int64_t spare : {0, 64, 24}) {
      Random random(15);  // the same numbers in the same blocks
      Shapes shapes = this->shapes();
      shapes.spare_bytes = spare;
      PagedSequences sequences(*backend, shapes, dtype, {1, 40, 133}, random);
      const std::vector<float> found = sequences.attend(*backend, {0, 1, 2}, {1, 40, 133}, {1, 12, 2});
      if (spare == 0) dense = found;
      EXPECT_TRUE(same_bits(found.data(), dense.data(), std::ssize(dense)))
          << spare << " bytes between blocks of " << name(dtype);
      EXPECT_TRUE(sequences.left_spare_bytes()) << spare << " bytes between blocks of " << name(dtype);
    }
  }
}

// Only a card has them: quire's own kernels and those of --attention-backend, which leave to the others what they have
// not.
AttentionBackend kernels_of(std::string_view card) {
  return parse_choice<AttentionBackend>(card.substr(card.find('_') + 1)).value();
}

class PagedAttentionOnTensorCores : public ::testing::TestWithParam<std::tuple<std::string, DType>> {};

// They multiply queries and weights of 16 bits: of a cache of BF16 with 8 digits, of the others with 11.
TEST_P(PagedAttentionOnTensorCores, ManyQueriesAreAsNearAsTheirRoundingLeavesThem) {
  const auto& [card, dtype] = GetParam();
  const auto backend = cards::make_card(2, {.attention = kernels_of(card)});
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << card;
  if (dtype == DType::kF8E4M3 && card == "cuda_flashinfer" && cards::is_emulated("cuda"))
    GTEST_SKIP() << "takes an emulated device long; tests/ops_cuda shows the same";
  auto reference = make_reference_backend();
  Random random(13);
  const std::vector<int32_t> ends = {1, 17, 70, 130, 200};
  const std::vector<size_t> all = {0, 1, 2, 3, 4};
  const double tolerance = dtype == DType::kF32 ? 2e-5 : dtype == DType::kBF16 ? 2e-2 : 3e-3;
  for (Shapes shapes : kShapes) {
    for (const std::vector<int32_t>& counts :
         {std::vector<int32_t>{1, 17, 5, 0, 9}, std::vector<int32_t>{0, 3, 70, 21, 66}}) {
      PagedSequences sequences(*backend, shapes, dtype, ends, random);
      sequences.query_gap = 6;
      EXPECT_LT(largest_difference(sequences.attend(*backend, all, ends, counts),
                                   sequences.attend(*reference, all, ends, counts)),
                tolerance)
          << "heads " << shapes.num_heads << " over " << shapes.num_kv_heads << ", size " << shapes.head_dim
          << ", blocks of " << shapes.block_size << ", window " << shapes.window;
      shapes.spare_bytes = 64;  // the second time other bytes lie between the blocks
    }
  }
}

// What decoding does: a query or few of each sequence, with no more rows than 8-bit caches have a kernel of their own
// for; some contexts are whole, some cut into splits.
TEST_P(PagedAttentionOnTensorCores, FewRowsAreAsNearAsTheirRoundingLeavesThem) {
  const auto& [card, dtype] = GetParam();
  const auto backend = cards::make_card(2, {.attention = kernels_of(card)});
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << card;
  auto reference = make_reference_backend();
  Random random(15);
  const double tolerance = dtype == DType::kF32 ? 2e-5 : dtype == DType::kBF16 ? 2e-2 : 3e-3;
  for (Shapes shapes : {Shapes{9, 3, 64, 16}, Shapes{8, 2, 128, 16, 50}, Shapes{8, 1, 128, 32},
                        Shapes{8, 4, 128, 16, 0, false, 2.5f}, Shapes{12, 4, 64, 16, 300, false, 0, true},
                        Shapes{2, 2, 128, 64, 0, false, 3.0f, true}, Shapes{4, 2, 64, 8}, Shapes{3, 1, 96, 16}}) {
    const int32_t most = 8 / (shapes.num_heads / shapes.num_kv_heads);
    PagedSequences sequences(*backend, shapes, dtype, {1, 31, 300, 545}, random);
    sequences.query_gap = 6;
    for (const auto& [which, ends, counts] :
         {std::tuple(std::vector<size_t>{0, 1, 2}, std::vector<int32_t>{1, 31, 288}, std::vector<int32_t>{1, 1, 1}),
          std::tuple(std::vector<size_t>{2, 1, 3}, std::vector<int32_t>{300, 17, 545}, std::vector<int32_t>{1, 0, 1}),
          std::tuple(std::vector<size_t>{1, 2, 3}, std::vector<int32_t>{16, 257, 512},
                     std::vector<int32_t>{1, most, std::min(2, most)})}) {
      EXPECT_LT(largest_difference(sequences.attend(*backend, which, ends, counts),
                                   sequences.attend(*reference, which, ends, counts)),
                tolerance)
          << "heads " << shapes.num_heads << " over " << shapes.num_kv_heads << ", size " << shapes.head_dim
          << ", blocks of " << shapes.block_size << ", window " << shapes.window << ", ends " << ends[0];
      shapes.spare_bytes = 64;  // of what is made next
    }
  }
}

// A context's bits are the same whole, cut into splits because another is longer, and beside one of more rows.
TEST_P(PagedAttentionOnTensorCores, FewRowsHaveTheSameBitsInOtherLaunches) {
  const auto& [card, dtype] = GetParam();
  const auto backend = cards::make_card(2, {.attention = kernels_of(card)});
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << card;
  if (card != "cuda_native") GTEST_SKIP() << "others choose by the batch";
  Random random(16);
  for (const Shapes& shapes : {Shapes{4, 1, 128, 16}, Shapes{6, 2, 64, 32, 280, false, 0, true}}) {
    PagedSequences sequences(*backend, shapes, dtype, {320, 700, 20}, random);
    sequences.query_gap = 6;
    const std::vector<float> whole = sequences.attend(*backend, {0}, {320}, {1});
    const std::vector<float> cut = sequences.attend(*backend, {0, 1}, {320, 700}, {1, 1});
    const std::vector<float> beside = sequences.attend(*backend, {0, 2}, {320, 20}, {1, 8});
    EXPECT_TRUE(same_bits(whole.data(), cut.data(), std::ssize(whole))) << "size " << shapes.head_dim;
    EXPECT_TRUE(same_bits(whole.data(), beside.data(), std::ssize(whole))) << "size " << shapes.head_dim;
  }
}

// Sequences 0, 2, 3 and 5 of the batch are one and the same up to where they have come, and so are 1 and 4.
TEST_P(PagedAttentionOnTensorCores, SequencesThatReadTheSameBlocksAreGivenTheSameBits) {
  const auto& [card, dtype] = GetParam();
  const auto backend = cards::make_card(2, {.attention = kernels_of(card)});
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << card;
  Random random(14);
  const std::vector<size_t> which = {0, 1, 0, 0, 1, 0};
  const std::vector<int32_t> ends = {600, 270, 515, 525, 300, 601};
  const std::vector<int32_t> counts = {1, 2, 1, 3, 8, 12};  // the last has too many queries
  const std::vector<SpanPlace> places = {{3, 0, 3, 0}, {0, 0, 3, 3}, {2, 0, 3, 4}, {4, 3, 2, 0}, {1, 3, 2, 8}, {5, 5},
                                         {1, 0},       {0, 1, 3, 0}, {2, 1, 3, 1}, {3, 1, 3, 2}, {5, 4},       {4, 5}};
  for (const Shapes& shapes :
       {kShapes[0], kShapes[12], Shapes{8, 2, 128, 16, 300, false, 2.5f, true}, Shapes{20, 1, 72, 16, 0, true}}) {
    PagedSequences sequences(*backend, shapes, dtype, {601, 300}, random);
    sequences.query_gap = 6;
    const std::vector<float> apart = sequences.attend(*backend, which, ends, counts);
    const std::vector<float> shared = sequences.attend(*backend, which, ends, counts, places);
    EXPECT_TRUE(same_bits(apart.data(), shared.data(), std::ssize(apart)))
        << "heads " << shapes.num_heads << " over " << shapes.num_kv_heads << ", size " << shapes.head_dim;
  }
}

class LatentAttentionOnTensorCores : public PagedAttentionOnTensorCores {};

TEST_P(LatentAttentionOnTensorCores, IsAsNearAsItsRoundingLeavesIt) {
  const auto& [card, dtype] = GetParam();
  const auto backend = cards::make_card(2, {.attention = kernels_of(card)});
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << card;
  auto reference = make_reference_backend();
  Random random(14);
  const Shapes deepseek = {
      .num_heads = 16, .num_kv_heads = 1, .head_dim = 576, .block_size = 16, .values_are_keys = true, .value_dim = 512};
  Shapes between = deepseek;  // other bytes lie between the blocks
  between.spare_bytes = 64;
  Shapes small = deepseek;  // MiniCPM3's
  small.num_heads = 40;
  small.head_dim = 288;
  small.value_dim = 256;
  const auto expect_near = [&](const Shapes& shapes, const std::vector<int32_t>& ends,
                               const std::vector<int32_t>& counts) {
    PagedSequences sequences(*backend, shapes, dtype, ends, random);
    sequences.query_gap = 6;
    EXPECT_LT(largest_difference(sequences.attend(*backend, {0, 1, 2}, ends, counts),
                                 sequences.attend(*reference, {0, 1, 2}, ends, counts)),
              dtype == DType::kBF16 ? 4e-2 : 6e-3)
        << shapes.num_heads << " heads of " << shapes.head_dim;
  };
  expect_near(deepseek, {1, 70, 333}, {1, 1, 1});
  expect_near(between, {1, 70, 333}, {0, 12, 3});
  if (card != "cuda_native") return;  // others have these heads alone
  expect_near(small, {31, 65, 333}, {1, 2, 1});
  // Cut into splits.
  expect_near(deepseek, {1, 257, 900}, {1, 1, 1});
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<std::string, DType>>& test) {
  return std::get<0>(test.param) + "_" + std::string(name(std::get<1>(test.param)));
}
INSTANTIATE_TEST_SUITE_P(Formats, PagedAttentionOnTensorCores,
                         ::testing::Combine(::testing::Values("cuda_native"), ::testing::ValuesIn(testing::kKvFormats)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FormatsOfOthers, PagedAttentionOnTensorCores,
                         ::testing::Combine(::testing::Values("cuda_flashinfer", "cuda_fa3"),
                                            ::testing::Values(DType::kF16, DType::kBF16)),
                         name_of);

INSTANTIATE_TEST_SUITE_P(FormatsOfFlashInfer, PagedAttentionOnTensorCores,
                         ::testing::Combine(::testing::Values("cuda_flashinfer"), ::testing::Values(DType::kF8E4M3)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Formats, LatentAttentionOnTensorCores,
                         ::testing::Combine(::testing::Values("cuda_native", "cuda_flashinfer"),
                                            ::testing::Values(DType::kF16, DType::kBF16)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(FormatsOfOurOwn, LatentAttentionOnTensorCores,
                         ::testing::Combine(::testing::Values("cuda_native"), ::testing::Values(DType::kF8E4M3)),
                         name_of);

class PagedAttentionOfRandomShapesTest : public ::testing::TestWithParam<std::string> {};

// One backend for all of them: what it keeps between calls must not show. Every batch is asked for twice, from caches
// whose blocks lie elsewhere: the lengths are those of the call before, nothing else is.
TEST_P(PagedAttentionOfRandomShapesTest, AgreesWithTheReferenceCallAfterCall) {
  auto backend = make_exact(GetParam());
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  auto reference = make_reference_backend();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  constexpr int32_t kBlockSizes[] = {1, 3, 8, 16, 16, 16, 20, 24, 32, 64, 80, 128};
  for (int round = 0; round < 15; ++round) {
    Shapes shapes{};
    shapes.num_kv_heads = static_cast<int32_t>(random.between(1, 3));
    shapes.num_heads = shapes.num_kv_heads * static_cast<int32_t>(random.between(1, 13));
    shapes.head_dim =
        static_cast<int32_t>(random.between(0, 1) == 0 ? 2 * random.between(1, 65) : 8 * random.between(1, 16));
    shapes.block_size = kBlockSizes[random.between(0, std::ssize(kBlockSizes) - 1)];
    shapes.window = static_cast<int32_t>(random.between(0, 2) == 0 ? random.between(1, 300) : 0);
    shapes.soft_cap = random.between(0, 2) == 0 ? static_cast<float>(random.between(1, 5)) : 0;
    shapes.sinks = random.between(0, 2) == 0;
    shapes.spare_bytes = random.between(0, 2) == 0 ? random.between(1, 100) : 0;
    const DType dtype =
        testing::kKvFormats[static_cast<size_t>(random.between(0, std::ssize(testing::kKvFormats) - 1))];
    std::vector<int32_t> ends;
    std::vector<int32_t> counts;
    std::vector<size_t> all;
    for (int64_t s = random.between(1, 4); s > 0; --s) {
      all.push_back(all.size());
      ends.push_back(static_cast<int32_t>(random.between(1, 400)));
      counts.push_back(static_cast<int32_t>(std::min<int64_t>(ends.back(), random.between(0, 24))));
    }
    SCOPED_TRACE(::testing::Message() << "round " << round << ": heads " << shapes.num_heads << " over "
                                      << shapes.num_kv_heads << ", size " << shapes.head_dim << ", blocks of "
                                      << shapes.block_size << ", window " << shapes.window << ", " << name(dtype));
    for (int call = 0; call < 2; ++call) {
      PagedSequences sequences(*backend, shapes, dtype, ends, random);
      ASSERT_LT(largest_difference(sequences.attend(*backend, all, ends, counts),
                                   sequences.attend(*reference, all, ends, counts)),
                3e-5);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Isa, PagedAttentionOfRandomShapesTest, ::testing::ValuesIn(kDevices));

INSTANTIATE_TEST_SUITE_P(Isa, PagedAttentionTest,
                         ::testing::Combine(::testing::ValuesIn(kDevices), ::testing::ValuesIn(kShapes)),
                         [](const auto& test) {
                           const Shapes& s = std::get<1>(test.param);
                           return std::get<0>(test.param) + "_h" + std::to_string(s.num_heads) + "kv" +
                                  std::to_string(s.num_kv_heads) + "d" + std::to_string(s.head_dim) + "b" +
                                  std::to_string(s.block_size) + "w" + std::to_string(s.window);
                         });

}  // namespace
}  // namespace quire::ops
