// Attention by FlashInfer's FA2 against the reference, on the emulated device: its plans, pages,
// masks and kernels are its own, tensor cores' instructions are emulated (tests/cuda_on_host/flashinfer).
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "ops/cuda/cuda_backend.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/flashinfer/fast_division.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/prompt_attention.h"
#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"
#include "tests/ops_cuda/on_card.h"

namespace quire::ops::cuda {
namespace {

using ops::testing::largest_difference;
using ops::testing::Random;
using testing::OnCard;

constexpr float kUntouched = 12345.0f;
constexpr size_t kScratchBytes = size_t{64} << 20;

struct Shape {
  DType dtype;
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t page_size;
  int32_t window = 0;
  float soft_cap = 0;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << name(shape.dtype) << ", heads " << shape.num_heads << " over " << shape.num_kv_heads << ", size "
       << shape.head_dim << ", pages of " << shape.page_size << ", window " << shape.window << ", soft cap "
       << shape.soft_cap;
}

constexpr int32_t kLatentKey = 576;
constexpr int32_t kLatent = 512;
bool is_latent(const Shape& shape) {
  return shape.head_dim == kLatentKey;
}

// Answers of latent attention are rounded, and so are its parts.
double tolerance(const Shape& shape) {
  const double rounding = is_latent(shape) ? 2 : 1;
  return rounding * (shape.dtype == DType::kBF16 ? 2e-2 : 3e-3);
}

// The queries of a sequence that a batch asks for: the last `count` before position `end`.
struct Part {
  int32_t end;
  int32_t count;
};

// Sequences whose pages lie in random order in a cache that holds NaN where no token is.
class Sequences {
 public:
  Sequences(const Shape& shape, std::vector<int32_t> lengths, Random& random)
      : shape_(shape), lengths_(std::move(lengths)) {
    for (const int32_t length : lengths_) stride_ = std::max(stride_, (length + shape.page_size - 1) / shape.page_size);
    num_pages_ = stride_ * std::ssize(lengths_) + 3;
    std::vector<BlockId> free(static_cast<size_t>(num_pages_));
    std::iota(free.begin(), free.end(), 0);
    for (size_t i = free.size(); i > 1; --i)
      std::swap(free[i - 1], free[static_cast<size_t>(random.between(0, static_cast<int64_t>(i) - 1))]);
    tables_.assign(lengths_.size() * static_cast<size_t>(stride_), kNoBlock);
    keys_.assign(static_cast<size_t>(num_pages_ * block_bytes(cache())), 0xff);
    values_ = keys_;
    std::vector<int64_t> slots;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int32_t p = 0; p < lengths_[s]; ++p) {
        BlockId& page = tables_[s * static_cast<size_t>(stride_) + static_cast<size_t>(p / shape.page_size)];
        if (p % shape.page_size == 0) {
          page = free.back();
          free.pop_back();
        }
        slots.push_back(int64_t{page} * shape.page_size + p % shape.page_size);
      }
    }
    const int64_t token = int64_t{shape.num_kv_heads} * shape.head_dim;
    const std::vector<float> kv = random.normals(std::ssize(slots) * 2 * token);
    const OnCard<int64_t> on_card(slots);
    write_kv({.keys = kv.data(),
              .values = is_latent(shape) ? nullptr : kv.data() + token,
              .token_stride = 2 * token,
              .num_tokens = std::ssize(slots),
              .slots = {slots.data(), on_card.data()},
              .cache = cache()},
             nullptr);
    queries_ = random.normals(std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0}) * row(), 2.0f);
  }

  // Calls compute(args) for the parts, whose numbers lie on the card; returns args.out.
  template <typename Compute>
  std::vector<float> with_args(const std::vector<Part>& parts, const Compute& compute) {
    std::vector<float> queries;
    std::vector<int32_t> offsets = {0};
    std::vector<int32_t> ends;
    int64_t first = 0;
    for (size_t s = 0; s < lengths_.size(); ++s) {
      for (int32_t p = parts[s].end - parts[s].count; p < parts[s].end; ++p) {
        const auto from = queries_.begin() + (first + p) * row();
        queries.insert(queries.end(), from, from + row());
        queries.insert(queries.end(), 7, std::numeric_limits<float>::quiet_NaN());
      }
      offsets.push_back(offsets.back() + parts[s].count);
      ends.push_back(parts[s].end);
      first += lengths_[s];
    }
    std::vector<float> out(static_cast<size_t>(offsets.back() * row()), kUntouched);
    const OnCard<int32_t> card_offsets(offsets);
    const OnCard<int32_t> card_ends(ends);
    const OnCard<BlockId> card_tables(tables_);
    const PagedAttentionArgs args = {.queries = queries.data(),
                                     .query_stride = row() + 7,
                                     .num_heads = shape_.num_heads,
                                     .cache = cache(),
                                     .num_sequences = static_cast<int32_t>(parts.size()),
                                     .query_offsets = {offsets.data(), card_offsets.data()},
                                     .context_lengths = {ends.data(), card_ends.data()},
                                     .block_tables = {tables_.data(), card_tables.data()},
                                     .block_table_stride = stride_,
                                     .scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                                     .window = shape_.window,
                                     .soft_cap = shape_.soft_cap,
                                     .out = out.data(),
                                     .value_dim = is_latent(shape_) ? kLatent : 0};
    check(args);
    compute(args);
    for (auto at = out.begin(); is_latent(shape_) && at != out.end(); at += kLatentKey)
      std::fill(at + kLatent, at + kLatentKey, kUntouched);
    return out;
  }

  // By `attention`, or by the reference; empty when `attention` has no kernel.
  std::vector<float> attend(const std::vector<Part>& parts, PromptAttention* attention,
                            size_t scratch_bytes = kScratchBytes) {
    bool done = true;
    std::vector<float> out = with_args(parts, [&](const PagedAttentionArgs& args) {
      if (attention == nullptr) return (*make_reference_backend())(args);
      const OnCard<uint8_t> scratch(scratch_bytes, 0xff);
      const Attended attended = attention->attend(args, kNotRecorded, scratch.data(), scratch_bytes);
      done = attended != Attended::kNothing;
      EXPECT_TRUE(!done || attended == Attended::kAll);
    });
    return done ? out : std::vector<float>();
  }

  // Recorded for contexts as long as the tables, and replayed for each of `all`, parts of as many queries.
  void expect_replayed_alike(const std::vector<std::vector<Part>>& all, Backend& backend) {
    with_args(all.front(), [&](const PagedAttentionArgs& args) {
      backend(args);
      const std::vector<int32_t> longest(all.front().size(), static_cast<int32_t>(stride_) * shape_.page_size);
      PagedAttentionArgs recorded = args;
      recorded.context_lengths.host = longest.data();
      const std::vector<BlockId> no_blocks(tables_.size(), 0);
      recorded.block_tables.host = no_blocks.data();
      auto made = backend.record(
          [&] {
            backend(recorded);
            backend(recorded);  // a second layer, of the same plan
          },
          /*renews_attention=*/false);
      ASSERT_TRUE(made.ok()) << made.status().message();
      for (const std::vector<Part>& parts : all) {
        with_args(parts, [&](const PagedAttentionArgs& other) {
          // Its numbers to where the recording reads them.
          const auto copy = [&](const void* from, const void* to, size_t bytes) {
            cudaMemcpy(const_cast<void*>(to), from, bytes, cudaMemcpyDefault);
          };
          const auto sequences = parts.size();
          copy(other.context_lengths.device, args.context_lengths.device, sequences * sizeof(int32_t));
          const auto tokens = static_cast<size_t>(args.query_offsets.host[sequences]);
          std::copy_n(other.queries, tokens * static_cast<size_t>(row() + 7), const_cast<float*>(args.queries));
          backend.replay(**made, [](PagedAttentionArgs&) {});
          backend.synchronise();
          std::copy_n(args.out, tokens * static_cast<size_t>(row()), other.out);
          std::vector<float> expected(tokens * static_cast<size_t>(row()));
          PagedAttentionArgs reference = other;
          reference.out = expected.data();
          (*make_reference_backend())(reference);
          const auto wanted = static_cast<size_t>(is_latent(shape_) ? kLatent : shape_.head_dim);
          for (size_t from = 0; from < expected.size(); from += static_cast<size_t>(shape_.head_dim)) {
            const auto numbers = [&](const float* rows) {
              return std::vector<float>(rows + from, rows + from + wanted);
            };
            ASSERT_LT(largest_difference(numbers(other.out), numbers(expected.data())), tolerance(shape_));
          }
        });
      }
    });
  }

  void expect_alike(const std::vector<Part>& parts, PromptAttention& attention) {
    const std::vector<float> got = attend(parts, &attention);
    ASSERT_FALSE(got.empty()) << "there is no kernel";
    compare(parts, got);
  }
  // By whatever kernels the backend chooses.
  void expect_alike(const std::vector<Part>& parts, Backend& backend) {
    compare(parts, with_args(parts, [&](const PagedAttentionArgs& args) {
              backend(args);
              backend.synchronise();
            }));
  }
  void compare(const std::vector<Part>& parts, const std::vector<float>& got) {
    const std::vector<float> expected = attend(parts, nullptr);
    int64_t first = 0;
    for (const Part& part : parts) {
      const auto rows = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + first * row(), all.begin() + (first + part.count) * row());
      };
      EXPECT_LT(largest_difference(rows(got), rows(expected)), tolerance(shape_))
          << part.count << " queries before " << part.end;
      first += part.count;
    }
  }

  int64_t row() const { return int64_t{shape_.num_heads} * shape_.head_dim; }  // floats of a token
  // Pages that no window shows any more go to somebody else.
  void give_back(size_t sequence, int32_t positions) {
    for (int32_t page = 0; page < positions / shape_.page_size; ++page)
      tables_[sequence * static_cast<size_t>(stride_) + static_cast<size_t>(page)] = kNoBlock;
  }

 private:
  KvCacheView cache() {
    return {.keys = keys_.data(),
            .values = is_latent(shape_) ? nullptr : values_.data(),
            .dtype = shape_.dtype,
            .num_blocks = num_pages_,
            .num_kv_heads = shape_.num_kv_heads,
            .head_dim = shape_.head_dim,
            .block_size = shape_.page_size,
            .values_are_keys = is_latent(shape_),
            .keys_by_token = true};
  }

  Shape shape_;
  std::vector<int32_t> lengths_;
  int32_t stride_ = 1;
  int64_t num_pages_ = 0;
  std::vector<BlockId> tables_;
  std::vector<uint8_t> keys_;
  std::vector<uint8_t> values_;
  std::vector<float> queries_;
};

std::unique_ptr<PromptAttention> make_attention(Allocator& memory) {
  auto attention = make_prompt_attention(AttentionBackend::kFlashInfer, {.major = 9, .minor = 0}, memory, nullptr);
  EXPECT_TRUE(attention.ok()) << attention.status().message();
  return std::move(attention).value();
}

class FlashInferTest : public ::testing::TestWithParam<Shape> {
 protected:
  CudaAllocator memory_{0};
  std::unique_ptr<PromptAttention> attention_ = make_attention(memory_);
  Random random_{21};
};

TEST_P(FlashInferTest, PromptsBehindCachedPrefixesAreTheReferences) {
  Sequences sequences(GetParam(), {150, 47, 201}, random_);
  sequences.expect_alike({{150, 150}, {47, 20}, {201, 130}}, *attention_);
  sequences.expect_alike({{131, 100}, {40, 40}, {190, 64}}, *attention_);
}

TEST_P(FlashInferTest, SequencesOfFewQueriesBetweenPromptsAreComputedToo) {
  Sequences sequences(GetParam(), {90, 160, 33, 230}, random_);
  sequences.expect_alike({{90, 1}, {160, 129}, {33, 8}, {230, 150}}, *attention_);
  sequences.expect_alike({{90, 0}, {160, 160}, {33, 1}, {230, 5}}, *attention_);
}

// Prompts are FlashInfer's, what is decoded beside them quire's own; runs that are neither are quire's own too.
TEST_P(FlashInferTest, AutoTakesBoth) {
  Sequences sequences(GetParam(), {90, 160, 33, 230}, random_);
  const auto backend = make_cuda_backend({.attention = AttentionBackend::kAuto});
  ASSERT_TRUE(backend.ok());
  sequences.expect_alike({{90, 1}, {160, 129}, {33, 8}, {230, 150}}, **backend);
  sequences.expect_alike({{90, 0}, {160, 160}, {33, 1}, {230, 0}}, **backend);
  sequences.expect_alike({{90, 1}, {160, 9}, {33, 1}, {230, 150}}, **backend);
}

TEST_P(FlashInferTest, ShortRunsAreTheReferences) {
  Sequences sequences(GetParam(), {1, 64, 333, 70, 129}, random_);
  sequences.expect_alike({{1, 1}, {64, 1}, {333, 1}, {70, 1}, {129, 1}}, *attention_);
  sequences.expect_alike({{1, 0}, {64, 9}, {200, 3}, {70, 0}, {129, 2}}, *attention_);
}

// The host knows no context's length when it is recorded: the card plans by its own numbers.
TEST_P(FlashInferTest, WhatIsRecordedIsPlannedAnewWhenItIsReplayed) {
  Sequences sequences(GetParam(), {400, 31, 129}, random_);
  const auto backend = make_cuda_backend({.attention = AttentionBackend::kFlashInfer});
  ASSERT_TRUE(backend.ok());
  sequences.expect_replayed_alike({{{7, 1}, {31, 1}, {128, 1}}, {{400, 1}, {2, 1}, {129, 1}}}, **backend);
}

// So few queries for so long a context that FlashInfer splits it and merges the parts.
TEST_P(FlashInferTest, LongContextsOfShortPromptsAreSplit) {
  const int32_t queries = 2 * 64 / (GetParam().num_heads / GetParam().num_kv_heads) + 1;
  Sequences sequences(GetParam(), {430, 260}, random_);
  const std::vector<Part> parts = {{430, queries}, {260, queries}};
  sequences.expect_alike(parts, *attention_);
  if (GetParam().window > 0) return;  // which may be too short to be split
  const size_t no_room_for_parts = static_cast<size_t>(2 * queries * sequences.row() * 2 + 256);
  EXPECT_TRUE(sequences.attend(parts, attention_.get(), no_room_for_parts).empty()) << "it did not split them";
}

INSTANTIATE_TEST_SUITE_P(Shapes, FlashInferTest,
                         ::testing::Values(Shape{DType::kF16, 9, 3, 64, 16},            //
                                           Shape{DType::kBF16, 4, 4, 64, 1},            // no groups, a page a token
                                           Shape{DType::kF16, 8, 2, 128, 16},           //
                                           Shape{DType::kBF16, 8, 1, 128, 32},          //
                                           Shape{DType::kF16, 7, 1, 128, 5},            // pages that no tile divides
                                           Shape{DType::kF16, 4, 2, 256, 16},           //
                                           Shape{DType::kBF16, 2, 1, 256, 4},           //
                                           Shape{DType::kF16, 9, 3, 64, 16, 40},        // windows
                                           Shape{DType::kBF16, 8, 2, 128, 1, 100},      //
                                           Shape{DType::kF16, 4, 2, 256, 16, 77},       //
                                           Shape{DType::kF16, 4, 1, 128, 16, 1},        // of itself alone
                                           Shape{DType::kF16, 4, 2, 128, 16, 0, 3.0f},  // soft caps
                                           Shape{DType::kBF16, 2, 1, 256, 16, 50, 5.0f},
                                           Shape{DType::kF8E4M3, 9, 3, 64, 16},  // 8 bits
                                           Shape{DType::kF8E4M3, 8, 2, 128, 4, 60}));

class FlashInferLatentTest : public FlashInferTest {};

TEST_P(FlashInferLatentTest, DecodedSequencesAreTheReferences) {
  Sequences sequences(GetParam(), {1, 64, 500, 129}, random_);
  sequences.expect_alike({{1, 1}, {64, 1}, {500, 1}, {129, 1}}, *attention_);
  sequences.expect_alike({{1, 0}, {64, 3}, {321, 1}, {129, 0}}, *attention_);
}

TEST_P(FlashInferLatentTest, PromptsBehindCachedPrefixesAreTheReferences) {
  Sequences sequences(GetParam(), {70, 47, 201}, random_);
  sequences.expect_alike({{70, 70}, {47, 1}, {201, 30}}, *attention_);
}

TEST_P(FlashInferLatentTest, WhatIsRecordedIsPlannedAnewWhenItIsReplayed) {
  Sequences sequences(GetParam(), {400, 31}, random_);
  const auto backend = make_cuda_backend({.attention = AttentionBackend::kFlashInfer});
  ASSERT_TRUE(backend.ok());
  sequences.expect_replayed_alike({{{7, 1}, {31, 1}}, {{400, 1}, {2, 1}}}, **backend);
}

TEST_P(FlashInferLatentTest, WhatItHasNoRoomForIsLeftToOthers) {
  Sequences sequences(GetParam(), {100}, random_);
  EXPECT_TRUE(sequences.attend({{100, 1}}, attention_.get(), 4096).empty());
}

INSTANTIATE_TEST_SUITE_P(Shapes, FlashInferLatentTest,
                         ::testing::Values(Shape{DType::kBF16, 16, 1, kLatentKey, 16},  // DeepSeek-V2-Lite's
                                           Shape{DType::kF16, 5, 1, kLatentKey, 3}));

class FlashInferPlansTest : public FlashInferTest {};

TEST_P(FlashInferPlansTest, AnotherBatchAtTheSameAddressesHasAPlanOfItsOwn) {
  for (const std::vector<Part>& parts :
       {std::vector<Part>{{100, 100}, {200, 100}}, {{100, 90}, {190, 110}}, {{60, 60}, {200, 140}}}) {
    Sequences sequences(GetParam(), {100, 200}, random_);
    sequences.expect_alike(parts, *attention_);
    sequences.expect_alike(parts, *attention_);
  }
}

TEST_P(FlashInferPlansTest, MorePlansThanAreKeptTakeTurns) {
  std::vector<Sequences> layers;
  for (int32_t window = 0; window < 6; ++window) {
    Shape shape = GetParam();
    shape.window = 30 * window;
    layers.emplace_back(shape, std::vector<int32_t>{150, 90}, random_);
  }
  for (int round = 0; round < 2; ++round) {
    for (Sequences& layer : layers) layer.expect_alike({{150, 120}, {90, 90}}, *attention_);
  }
}

TEST_P(FlashInferPlansTest, PagesBehindAWindowMayBeSomebodyElses) {
  Shape shape = GetParam();
  shape.window = 30;
  Sequences sequences(shape, {300, 180}, random_);
  const std::vector<Part> parts = {{300, 150}, {180, 100}};
  const std::vector<float> before = sequences.attend(parts, attention_.get());
  sequences.give_back(0, 300 - 150 - 30);
  sequences.give_back(1, 180 - 100 - 30);
  EXPECT_EQ(sequences.attend(parts, attention_.get()), before);
}

TEST_P(FlashInferPlansTest, WhoseTurnItIsChangesNoBit) {
  Sequences sequences(GetParam(), {170, 90}, random_);
  const std::vector<Part> parts = {{170, 130}, {90, 80}};
  const std::vector<float> forwards = sequences.attend(parts, attention_.get());
  quire_cuda_on_host_reverse(true);
  const std::vector<float> backwards = sequences.attend(parts, attention_.get());
  quire_cuda_on_host_reverse(false);
  EXPECT_FALSE(forwards.empty());
  EXPECT_EQ(backwards, forwards);
}

TEST_P(FlashInferPlansTest, WhatItHasNoKernelOrRoomForIsLeftToOthers) {
  Sequences prompts(GetParam(), {100, 200}, random_);
  EXPECT_TRUE(prompts.attend({{100, 100}, {200, 200}}, attention_.get(), 4096).empty()) << "no scratch";
  EXPECT_TRUE(prompts.attend({{100, 1}, {200, 1}}, attention_.get(), 4096).empty()) << "no scratch";
  Shape shape = GetParam();
  shape.head_dim = 80;
  EXPECT_TRUE(Sequences(shape, {200}, random_).attend({{200, 200}}, attention_.get()).empty());
  shape = GetParam();
  shape.dtype = DType::kF32;
  EXPECT_TRUE(Sequences(shape, {200}, random_).attend({{200, 200}}, attention_.get()).empty());
}

INSTANTIATE_TEST_SUITE_P(Shapes, FlashInferPlansTest,
                         ::testing::Values(Shape{DType::kF16, 4, 2, 64, 16}, Shape{DType::kBF16, 2, 2, 128, 8}));

TEST(FastDivision, IsDivisionBelowTwoToThe31) {
  Random random(3);
  constexpr int64_t kEnd = int64_t{1} << 31;
  for (int i = 0; i < 20000; ++i) {
    const auto divisor = static_cast<uint32_t>(i < 300 ? i + 1 : random.between(1, i % 2 == 0 ? 5000 : kEnd - 1));
    const ::flashinfer::uint_fastdiv by(divisor);
    for (const int64_t near : {int64_t{0}, random.between(0, kEnd - 1) / divisor * divisor, kEnd - 1}) {
      for (const int64_t dividend : {near - 1, near, near + 1}) {
        if (dividend < 0 || dividend >= kEnd) continue;
        uint32_t quotient = 0;
        uint32_t remainder = 0;
        by.divmod(static_cast<uint32_t>(dividend), quotient, remainder);
        ASSERT_EQ(quotient, dividend / divisor) << dividend << " by " << divisor;
        ASSERT_EQ(remainder, dividend % divisor) << dividend << " by " << divisor;
      }
    }
  }
}

TEST(PromptAttention, WhatCannotBeIsRefusedWithWhatToDo) {
  CudaAllocator memory(0);
  const auto refusal = [&](AttentionBackend asked, const AttentionCard& card) {
    return make_prompt_attention(asked, card, memory, nullptr).status().message();
  };
  EXPECT_NE(refusal(AttentionBackend::kFlashInfer, {.major = 7, .minor = 5}).find("choose native"), std::string::npos);
  EXPECT_NE(refusal(AttentionBackend::kFa3, {.major = 8, .minor = 9}).find("choose flashinfer or native"),
            std::string::npos);
  EXPECT_EQ(refusal(AttentionBackend::kAuto, {.major = 9, .batch_invariant = true}), "");
}

TEST(PromptAttention, AutoIsTheirsWhereTheyCanBe) {
  CudaAllocator memory(0);
  const auto made = [&](AttentionBackend asked, const AttentionCard& card) {
    const auto attention = make_prompt_attention(asked, card, memory, nullptr);
    EXPECT_TRUE(attention.ok());
    return attention.ok() && *attention != nullptr;
  };
  EXPECT_TRUE(made(AttentionBackend::kAuto, {.major = 9, .minor = 0}));
  EXPECT_FALSE(made(AttentionBackend::kAuto, {.major = 7, .minor = 5}));
  EXPECT_FALSE(made(AttentionBackend::kAuto, {.major = 9, .minor = 0, .batch_invariant = true}));
  EXPECT_FALSE(made(AttentionBackend::kNative, {.major = 9, .minor = 0}));
}

}  // namespace
}  // namespace quire::ops::cuda
