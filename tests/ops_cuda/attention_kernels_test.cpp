// The kernels of the KV cache and of attention against the reference, on the emulated device
// (tests/cuda_on_host): numbers of the step lie in its memory, tensors in the host's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "ops/cuda/kernels.h"
#include "ops/cuda/launch.h"
#include "ops/reference/kv_values.h"
#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops::cuda {

namespace {

constexpr DType kFormats[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2, DType::kI8};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int32_t between(int64_t low, int64_t high) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(low, high)(engine_));
  }
  template <typename T, size_t kSize>
  T one_of(const T (&choices)[kSize]) {
    return choices[static_cast<size_t>(between(0, kSize - 1))];
  }
  std::vector<float> normals(int64_t count, float deviation) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = deviation * ops::testing::normal_of(engine_());
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

uint64_t fresh_seed() {
  const char* given = std::getenv("QUIRE_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

// A copy in device memory, out of the host's reach.
template <typename T>
class OnCard {
 public:
  explicit OnCard(const std::vector<T>& values) : host_(values.data()) {
    check_cuda(cudaMalloc(&data_, values.size() * sizeof(T)), "malloc");
    check_cuda(cudaMemcpy(data_, host_, values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  ~OnCard() { cudaFree(data_); }
  OnCard(const OnCard&) = delete;
  OnCard& operator=(const OnCard&) = delete;
  Mirrored<T> mirrored() const { return {host_, data_}; }

 private:
  const T* host_;
  T* data_ = nullptr;
};

struct Shape {
  DType dtype;
  int32_t num_kv_heads;
  int32_t group;
  int32_t head_dim;
  int32_t block_size;
  int32_t window = 0;
  bool values_are_keys = false;
  float soft_cap = 0;
  bool sinks = false;
  bool aligned = true;
};

std::string to_string(const Shape& s) {
  return std::string(name(s.dtype)) + " kv heads " + std::to_string(s.num_kv_heads) + " group " +
         std::to_string(s.group) + " size " + std::to_string(s.head_dim) + " blocks of " +
         std::to_string(s.block_size) + " window " + std::to_string(s.window) +
         (s.values_are_keys ? " values are keys" : "") + " cap " + std::to_string(s.soft_cap) +
         (s.sinks ? " sinks" : "") + (s.aligned ? "" : " unaligned");
}

// Sequences in a cache whose blocks lie in random order and whose unwritten bytes make NaN, filled by the kernel.
class Sequences {
 public:
  Sequences(const Shape& shape, const std::vector<int32_t>& lengths, Random& random)
      : shape_(shape), lengths_(lengths), backend_(make_reference_backend()) {
    const int32_t longest = *std::max_element(lengths.begin(), lengths.end());
    stride_ = (longest + shape.block_size - 1) / shape.block_size;
    num_blocks_ = stride_ * std::ssize(lengths) + 1;
    std::vector<BlockId> free(static_cast<size_t>(num_blocks_));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), std::mt19937(static_cast<unsigned>(random.between(0, 1 << 30))));
    tables_.assign(static_cast<size_t>(stride_) * lengths.size(), kNoBlock);
    keys_.assign(static_cast<size_t>(num_blocks_ * block_bytes(cache())) + 32, 0xff);
    values_ = keys_;
    std::vector<int64_t> slots;
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int32_t p = 0; p < lengths[s]; ++p) {
        BlockId& block = tables_[s * static_cast<size_t>(stride_) + static_cast<size_t>(p / shape.block_size)];
        if (p % shape.block_size == 0) {
          block = free.back();
          free.pop_back();
        }
        slots.push_back(int64_t{block} * shape.block_size + p % shape.block_size);
      }
    }
    const int64_t token = int64_t{shape.num_kv_heads} * shape.head_dim;
    const std::vector<float> kv = random.normals(std::ssize(slots) * 2 * token, 1.0f);
    const OnCard<int64_t> on_card(slots);
    write_kv({.keys = kv.data(),
              .values = shape.values_are_keys ? nullptr : kv.data() + token,
              .token_stride = 2 * token,
              .num_tokens = std::ssize(slots),
              .slots = on_card.mirrored(),
              .cache = cache()},
             nullptr);
    queries_ = random.normals(
        std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) * num_heads() * shape.head_dim, 2.0f);
  }

  // Of the `counts[s]` queries before position ends[s] of each sequence; on the card with `scratch_bytes` of scratch,
  // or by the reference. `places`: who shares what.
  std::vector<float> attend(const std::vector<int32_t>& ends, const std::vector<int32_t>& counts, int64_t scratch_bytes,
                            bool on_card, bool may_round = false, const std::vector<SpanPlace>& places = {}) {
    const int64_t token = int64_t{num_heads()} * shape_.head_dim;
    std::vector<float> queries;
    std::vector<int32_t> offsets = {0};
    int64_t first = 0;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int32_t p = ends[s] - counts[s]; p < ends[s]; ++p) {
        const auto from = queries_.begin() + (first + p) * token;
        queries.insert(queries.end(), from, from + token);
        queries.insert(queries.end(), 3, std::numeric_limits<float>::quiet_NaN());
      }
      offsets.push_back(offsets.back() + counts[s]);
      first += lengths_[s];
    }
    std::vector<float> sinks;
    for (int32_t h = 0; h < num_heads(); ++h) sinks.push_back(-4.0f + 3.0f * static_cast<float>(h));
    std::vector<float> out(static_cast<size_t>(offsets.back() * token), std::numeric_limits<float>::quiet_NaN());
    const OnCard<int32_t> card_offsets(offsets);
    const OnCard<int32_t> card_ends(ends);
    const OnCard<BlockId> card_tables(tables_);
    const OnCard<SpanPlace> card_places(places);
    const PagedAttentionArgs args = {.queries = queries.data(),
                                     .query_stride = token + 3,
                                     .num_heads = num_heads(),
                                     .cache = cache(),
                                     .num_sequences = static_cast<int32_t>(lengths_.size()),
                                     .query_offsets = card_offsets.mirrored(),
                                     .context_lengths = card_ends.mirrored(),
                                     .block_tables = card_tables.mirrored(),
                                     .block_table_stride = stride_,
                                     .span_places = places.empty() ? Mirrored<SpanPlace>() : card_places.mirrored(),
                                     .num_shared_spans = static_cast<int32_t>(places.size() / lengths_.size()),
                                     .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                                     .window = shape_.window,
                                     .soft_cap = shape_.soft_cap,
                                     .sinks = shape_.sinks ? sinks.data() : nullptr,
                                     .out = out.data()};
    check(args);
    if (on_card) {
      std::vector<float> scratch(static_cast<size_t>(scratch_bytes / 4), std::numeric_limits<float>::quiet_NaN());
      cuda::attend(args, may_round, scratch.data(), scratch_bytes, nullptr);
    } else {
      (*backend_)(args);
    }
    return out;
  }

  int64_t scratch_bytes(int64_t num_tokens, int64_t max_context) const {
    return attention_scratch_bytes(num_tokens, num_heads(), shape_.head_dim, max_context);
  }
  // From now on the blocks that are whole in the first positions of a sequence are those of `other`.
  void share(size_t sequence, size_t other, int32_t positions) {
    const auto table = [&](size_t s) { return tables_.begin() + static_cast<int64_t>(s) * stride_; };
    std::copy_n(table(other), positions / shape_.block_size, table(sequence));
  }
  // Groups of sequences whose blocks of a span are the same.
  std::vector<SpanPlace> places(const std::vector<int32_t>& ends, const std::vector<int32_t>& counts) const {
    std::vector<SpanPlace> all;
    const auto n = static_cast<int32_t>(lengths_.size());
    for (int32_t span = 0; span < stride_ * shape_.block_size / kSharedSpan; ++span) {
      std::map<std::vector<BlockId>, std::vector<int32_t>> groups;
      for (int32_t s = 0; s < n; ++s) {
        const int32_t queries = counts[static_cast<size_t>(s)];
        const auto table = tables_.begin() + s * stride_;
        std::vector<BlockId> blocks(table + span * kSharedSpan / shape_.block_size,
                                    table + ((span + 1) * kSharedSpan - 1) / shape_.block_size + 1);
        const bool may = queries > 0 && queries <= kMostSharedQueries &&
                         ends[static_cast<size_t>(s)] - queries >= (span + 1) * kSharedSpan &&
                         std::ranges::find(blocks, kNoBlock) == blocks.end();
        if (!may) blocks = {-2 - s};
        groups[blocks].push_back(s);
      }
      int32_t first = 0;
      for (const auto& [blocks, members] : groups) {
        SpanPlace place{.first = first, .size = static_cast<int32_t>(members.size())};
        for (const int32_t s : members) {
          place.sequence = s;
          all.push_back(place);
          place.queries_before += counts[static_cast<size_t>(s)];
        }
        first += place.size;
      }
    }
    return all;
  }
  // Blocks of a sequence's first positions, which no window shows any more, go to somebody else.
  void give_back(size_t sequence, int32_t positions) {
    for (int32_t b = 0; b < positions / shape_.block_size; ++b)
      tables_[sequence * static_cast<size_t>(stride_) + static_cast<size_t>(b)] = kNoBlock;
  }

 private:
  int32_t num_heads() const { return shape_.num_kv_heads * shape_.group; }
  KvCacheView cache() {
    const auto place = [&](std::vector<uint8_t>& memory) {
      auto* at = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16);
      return shape_.aligned ? at : at + 4;
    };
    return {place(keys_),          shape_.values_are_keys ? nullptr : place(values_),
            shape_.dtype,          num_blocks_,
            shape_.num_kv_heads,   shape_.head_dim,
            shape_.block_size,     shape_.values_are_keys,
            /*keys_by_token=*/true};
  }

  Shape shape_;
  std::vector<int32_t> lengths_;
  std::unique_ptr<Backend> backend_;
  int64_t stride_ = 0;
  int64_t num_blocks_ = 0;
  std::vector<BlockId> tables_;
  std::vector<uint8_t> keys_;
  std::vector<uint8_t> values_;
  std::vector<float> queries_;
};

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - b[i]) / (1 + std::fabs(static_cast<double>(b[i])));
    largest = std::max(largest, std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity());
  }
  return largest;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class AttentionKernels : public ::testing::TestWithParam<DType> {};

TEST_P(AttentionKernels, WriteTheBytesOfTheReference) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  for (const int32_t head_dim : {2, 6, 40, 64, 130, 576}) {
    for (const int32_t block_size : {1, 5, 16, 100}) {
      KvCacheView view = {.dtype = GetParam(),
                          .num_blocks = 4,
                          .num_kv_heads = 2,
                          .head_dim = head_dim,
                          .block_size = block_size,
                          .keys_by_token = true};
      std::vector<uint8_t> memory[4];
      for (auto& one : memory) one.assign(static_cast<size_t>(4 * block_bytes(view)), 0xff);
      std::vector<int64_t> slots(static_cast<size_t>(3 * block_size));
      std::iota(slots.begin(), slots.end(), block_size / 2);
      const int64_t count = std::ssize(slots) * 2 * head_dim;
      std::vector<float> keys = random.normals(count, 1.0f);
      std::vector<float> values = random.normals(count, 1.0f);
      for (float& x : keys) x = std::ldexp(x, random.between(-150, 20));
      for (float& x : values) x = std::ldexp(x, random.between(-30, 20));
      for (int i = 0; i < 3; ++i) {
        constexpr float kOdd[] = {std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::infinity(),
                                  -std::numeric_limits<float>::quiet_NaN(),
                                  0.0f,
                                  -0.0f,
                                  std::numeric_limits<float>::max()};
        values[static_cast<size_t>(random.between(0, count - 1))] = random.one_of(kOdd);
      }
      KvWriteArgs args = {.keys = keys.data(),
                          .values = values.data(),
                          .token_stride = 2 * head_dim,
                          .num_tokens = std::ssize(slots),
                          .slots = slots.data(),
                          .cache = view};
      args.cache.keys = memory[0].data();
      args.cache.values = memory[1].data();
      write_kv(args, nullptr);
      args.cache.keys = memory[2].data();
      args.cache.values = memory[3].data();
      (*make_reference_backend())(args);
      EXPECT_TRUE(memory[0] == memory[2]) << "keys, size " << head_dim << ", blocks of " << block_size;
      EXPECT_TRUE(memory[1] == memory[3]) << "values, size " << head_dim << ", blocks of " << block_size;
    }
  }
}

// 34 sequences of 8 kv heads, one of them long, are cut where there is scratch; that changes no bit.
TEST_P(AttentionKernels, OfManySequencesAreTheSameWholeAndCut) {
  Random random(fresh_seed());
  std::vector<int32_t> lengths(34, 20);
  lengths[7] = 1100;
  Sequences sequences({GetParam(), 8, 2, 64, 16}, lengths, random);
  const std::vector<int32_t> ones(lengths.size(), 1);
  for (const bool may_round : {false, true}) {
    const std::vector<float> whole = sequences.attend(lengths, ones, 0, /*on_card=*/true, may_round);
    const std::vector<float> cut =
        sequences.attend(lengths, ones, sequences.scratch_bytes(34, 1100), /*on_card=*/true, may_round);
    EXPECT_TRUE(same_bits(whole, cut)) << may_round;
    const std::vector<float> reference = sequences.attend(lengths, ones, 0, /*on_card=*/false);
    EXPECT_LT(largest_difference(cut, reference), may_round ? 2e-2 : 1e-5);
  }
}

TEST_P(AttentionKernels, AgreeWithTheReferenceAtTheBoundariesOfTilesAndSplits) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const std::vector<int32_t> lengths = {1, 31, 32, 33, 512, 513, 545, 1030};
  const std::vector<Shape> shapes = {{GetParam(), 1, 4, 64, 16},
                                     {GetParam(), 2, 1, 128, 32},
                                     {GetParam(), 1, 9, 40, 8, 0, false, 0, true},
                                     {GetParam(), 1, 2, 320, 16, 0, false, 3.0f},
                                     {GetParam(), 1, 3, 576, 64, 0, true},
                                     {GetParam(), 1, 5, 72, 5, 100, true},
                                     {GetParam(), 2, 3, 26, 1024, 600, false, 2.0f, true}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(to_string(shape));
    Sequences sequences(shape, lengths, random);
    for (const std::vector<int32_t>& counts :
         {std::vector<int32_t>(8, 1), {1, 0, 2, 1, 0, 0, 12, 1}, {0, 8, 0, 3, 1, 8, 0, 2}}) {
      const std::vector<float> expected = sequences.attend(lengths, counts, 0, false);
      const std::vector<float> whole = sequences.attend(lengths, counts, 0, true);
      const int64_t scratch = sequences.scratch_bytes(30, 1030);
      EXPECT_GT(scratch, 0);
      EXPECT_LT(largest_difference(whole, expected), 2e-5);
      EXPECT_TRUE(same_bits(sequences.attend(lengths, counts, scratch, true), whole));
    }
  }
}

// With tensor cores: decoding in one go and split, which is the same bits; prompts beside it; heads of latent
// attention.
TEST_P(AttentionKernels, AgreeWithTheReferenceWhereTensorCoresRound) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const std::vector<int32_t> lengths = {1, 63, 64, 65, 255, 256, 257, 700};
  const std::vector<Shape> shapes = {{GetParam(), 2, 4, 64, 16},
                                     {GetParam(), 1, 1, 128, 32},
                                     {GetParam(), 1, 9, 80, 8, 0, false, 0, true},
                                     {GetParam(), 1, 2, 256, 16, 0, false, 3.0f},
                                     {GetParam(), 1, 16, 576, 16, 0, true},
                                     {GetParam(), 1, 20, 192, 5, 0, true},
                                     {GetParam(), 1, 3, 48, 16, 90, false, 2.0f, true}};
  // Queries and weights are rounded to the cache's 16 bits, and so are keys and values of 8.
  const double tolerance = GetParam() == DType::kBF16 ? 3e-2 : 4e-3;
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(to_string(shape));
    Sequences sequences(shape, lengths, random);
    for (const std::vector<int32_t>& counts : {std::vector<int32_t>(8, 1), {1, 0, 2, 12, 0, 8, 3, 1}}) {
      const std::vector<float> whole = sequences.attend(lengths, counts, 0, true, true);
      EXPECT_LT(largest_difference(whole, sequences.attend(lengths, counts, 0, false)), tolerance);
      const int64_t scratch = sequences.scratch_bytes(27, 700);
      EXPECT_GT(scratch, 0);
      quire_cuda_on_host_reverse(true);
      EXPECT_TRUE(same_bits(sequences.attend(lengths, counts, scratch, true, true), whole));
      quire_cuda_on_host_reverse(false);
    }
  }
}

// Sequences that read the same blocks for a while, with tensor cores: together, in splits, or each by itself.
TEST_P(AttentionKernels, ReadWhatSequencesShareOnceAndGiveTheSameBits) {
  const uint64_t seed = fresh_seed();
  Random random(seed);
  for (int round = 0; round < 8; ++round) {
    constexpr int32_t kBlockSizes[] = {5, 16, 32, 100, 300};
    constexpr int32_t kGroups[] = {1, 3, 4, 8, 20};
    Shape shape = {GetParam(), 1, random.one_of(kGroups), 8 * random.between(1, 20), random.one_of(kBlockSizes)};
    if (random.between(0, 2) == 0) shape.window = random.between(200, 700);
    if (random.between(0, 2) == 0) shape.soft_cap = 3;
    shape.sinks = random.between(0, 2) == 0;
    shape.values_are_keys = random.between(0, 3) == 0;
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", round " << round << ": " << to_string(shape));
    std::vector<int32_t> ends;
    std::vector<int32_t> counts;
    for (int s = 0; s < 7; ++s) {
      ends.push_back(random.between(260, 800));
      counts.push_back(random.between(0, 3) > 0 ? 1 : random.between(0, 10));
    }
    Sequences sequences(shape, ends, random);
    for (size_t s = 1; s < ends.size(); ++s) {
      const auto other = static_cast<size_t>(random.between(0, static_cast<int64_t>(s) - 1));
      sequences.share(s, other, std::min({ends[s] - counts[s], ends[other] - counts[other], random.between(200, 800)}));
    }
    for (size_t s = 0; s < ends.size() && shape.window > 0; ++s)
      sequences.give_back(s, std::max(0, ends[s] - counts[s] - shape.window));
    const std::vector<float> apart = sequences.attend(ends, counts, 0, true, true);
    const int64_t scratch = sequences.scratch_bytes(70, 800);
    quire_cuda_on_host_reverse(round % 2 == 1);
    EXPECT_TRUE(same_bits(sequences.attend(ends, counts, scratch, true, true, sequences.places(ends, counts)), apart));
    quire_cuda_on_host_reverse(false);
  }
}

TEST_P(AttentionKernels, GiveAQueryTheSameBitsInAnyBatch) {
  const uint64_t seed = fresh_seed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const std::vector<Shape> shapes = {{GetParam(), 1, 3, 32, 16}, {GetParam(), 1, 6, 24, 12, 90, false, 0, true}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(to_string(shape));
    const int64_t token = int64_t{shape.group} * shape.head_dim;
    Sequences sequences(shape, {700, 50}, random);
    const std::vector<float> all = sequences.attend({700, 50}, {700, 50}, 0, true);
    for (int32_t begin = 0; begin < 700;) {
      const int32_t count =
          std::min(700 - begin, random.between(0, 1) == 0 ? random.between(1, 12) : random.between(1, 300));
      const int32_t others = random.between(0, 3);
      const int64_t scratch = random.between(0, 3) == 0 ? 0 : sequences.scratch_bytes(count + others, 700);
      const std::vector<float> some = sequences.attend({begin + count, 50}, {count, others}, scratch, true);
      ASSERT_EQ(std::memcmp(some.data(), all.data() + begin * token, static_cast<size_t>(count * token) * 4), 0)
          << "positions " << begin << " to " << begin + count << " beside " << others;
      begin += count;
    }
  }
}

TEST_P(AttentionKernels, AgreeWithTheReferenceForRandomShapes) {
  const uint64_t seed = fresh_seed();
  Random random(seed);
  constexpr int32_t kBlockSizes[] = {1, 3, 8, 16, 16, 20, 32, 64, 100, 128, 1000};
  for (int round = 0; round < 15; ++round) {
    Shape shape = {GetParam(), random.between(1, 2), random.between(1, random.between(0, 3) == 0 ? 18 : 6),
                   2 * random.between(1, 80), random.one_of(kBlockSizes)};
    if (random.between(0, 1) == 0) shape.head_dim = 8 * random.between(1, 72);
    if (random.between(0, 2) == 0) shape.window = random.between(1, 700);
    if (random.between(0, 2) == 0) shape.soft_cap = static_cast<float>(random.between(1, 5));
    shape.sinks = random.between(0, 2) == 0;
    shape.values_are_keys = random.between(0, 2) == 0;
    shape.aligned = random.between(0, 3) > 0;
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", round " << round << ": " << to_string(shape));
    std::vector<int32_t> ends;
    std::vector<int32_t> counts;
    for (int32_t s = random.between(1, 4); s > 0; --s) {
      ends.push_back(random.between(1, random.between(0, 2) == 0 ? 1100 : 90));
      counts.push_back(std::min(ends.back(), random.between(0, random.between(0, 2) == 0 ? 20 : 3)));
    }
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    Sequences sequences(shape, ends, random);
    for (size_t s = 0; s < ends.size() && shape.window > 0; ++s)
      sequences.give_back(s, std::max(0, ends[s] - counts[s] - shape.window));
    quire_cuda_on_host_reverse(round % 2 == 1);
    const std::vector<float> got = sequences.attend(ends, counts, sequences.scratch_bytes(rows, 1300), true);
    ASSERT_LT(largest_difference(got, sequences.attend(ends, counts, 0, false)), 2e-5);
  }
  quire_cuda_on_host_reverse(false);
}

INSTANTIATE_TEST_SUITE_P(Formats, AttentionKernels, ::testing::ValuesIn(kFormats),
                         [](const auto& test) { return std::string(name(test.param)); });

}  // namespace
}  // namespace quire::ops::cuda
