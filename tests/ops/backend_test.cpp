#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "base/host_memory.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using ::testing::HasSubstr;

TEST(CpuBackendTest, NamesItsInstructionSetAndThreads) {
  const auto backend = make_cpu_backend({.threads = 3, .isa = Isa::kPortable});
  ASSERT_TRUE(backend.ok());
  EXPECT_EQ((*backend)->description(), "cpu, portable, 3 threads");
}

TEST(CpuBackendTest, ChoosesASetThatTheMachineHasWhenAskedForNone) {
  const auto backend = make_cpu_backend({});
  ASSERT_TRUE(backend.ok());
  std::string_view best = "portable";
  for (const char* isa : {"avx2", "avx512", "avx512_bf16"}) {
    if (testing::make_backend(isa) != nullptr) best = isa;
  }
  EXPECT_THAT((*backend)->description(), HasSubstr(best));
}

TEST(CpuBackendTest, RefusesASillyNumberOfThreads) {
  for (const int threads : {-1, 1000000}) {
    const auto backend = make_cpu_backend({.threads = threads});
    ASSERT_FALSE(backend.ok());
    EXPECT_EQ(backend.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(backend.status().message(), HasSubstr(std::to_string(threads)));
  }
}

TEST(CpuBackendTest, AllocatesAlignedMemoryOfAnySize) {
  const auto backend = make_cpu_backend({.threads = 1}).value();
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{3} << 20}) {
    Buffer buffer(backend->allocator(), bytes);
    ASSERT_NE(buffer.data(), nullptr) << bytes;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u) << bytes;
    if (bytes > 0) buffer.as<char>()[bytes - 1] = 1;
  }
  EXPECT_EQ(backend->allocator().device(), (Device{DeviceKind::kCpu, 0}));
}

TEST(CpuBackendTest, PiecesOfAKindDoNotBeginInTheSameSetOfACache) {
  const auto backend = make_cpu_backend({.threads = 1}).value();
  for (const size_t bytes : {kLargePage, kLargePage + 1, 3 * kLargePage + 12345, 5 * kLargePage}) {
    std::vector<Buffer> buffers;
    std::set<uintptr_t> sets;
    for (int i = 0; i < 3; ++i) {
      buffers.emplace_back(backend->allocator(), bytes);
      ASSERT_NE(buffers.back().data(), nullptr) << bytes;
      EXPECT_TRUE(sets.insert(reinterpret_cast<uintptr_t>(buffers.back().data()) / 64 % 2048).second) << bytes;
      prefer_large_pages(buffers.back().data(), bytes);
      std::memset(buffers.back().data(), 17 * i + 1, bytes);
    }
    for (size_t i = 0; i < buffers.size(); ++i) {
      EXPECT_EQ(buffers[i].as<char>()[0], static_cast<char>(17 * i + 1)) << bytes;
      EXPECT_EQ(buffers[i].as<char>()[bytes - 1], static_cast<char>(17 * i + 1)) << bytes;
    }
  }
}

TEST(CpuBackendTest, SaysThatThereIsNoMemoryInsteadOfFailing) {
  const auto backend = make_cpu_backend({.threads = 1}).value();
  for (const size_t bytes : {size_t{1} << 60, std::numeric_limits<size_t>::max()})
    EXPECT_EQ(backend->allocator().allocate(bytes), nullptr) << bytes;
}

TEST(CpuBackendTest, LendsItsThreadsForWorkOfTheHost) {
  auto cpu = make_cpu_backend({.threads = 3}).value();
  auto reference = make_reference_backend();
  for (Backend* backend : {cpu.get(), reference.get()}) {
    std::vector<std::atomic<int>> runs(100);
    std::atomic<int> strangers = 0;
    backend->host_parallel_for(100, [&](int64_t task, int thread) {
      ++runs[static_cast<size_t>(task)];
      if (thread < 0 || thread >= backend->num_host_threads()) ++strangers;
    });
    for (const auto& count : runs) EXPECT_EQ(count, 1);
    EXPECT_EQ(strangers, 0);
  }
}

class ContractDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  std::vector<float> floats_ = std::vector<float>(4096);
};

TEST_F(ContractDeathTest, EmbeddingOfAnIdPastTheTable) {
  const TokenId id = 4;
  const EmbeddingArgs args{&id, 1, {floats_.data(), DType::kF32, Shape{4, 8}}, floats_.data()};
  EXPECT_DEATH((*backend_)(args), "ids\\[0\\] is 4, the table has 4 rows");
}

TEST_F(ContractDeathTest, LinearWithRowsCloserThanTheyAreLong) {
  const TensorView view{floats_.data(), DType::kF32, Shape{8, 16}};
  const auto weight = backend_->pack(std::span(&view, 1)).value();
  const LinearArgs args{floats_.data(), 15, 2, weight.get(), nullptr, floats_.data(), 8};
  EXPECT_DEATH((*backend_)(args), "x_stride 15");
}

TEST_F(ContractDeathTest, RopeAtAPositionPastTheTable) {
  const int32_t position = 10;
  RopeArgs args{.heads = floats_.data(), .token_stride = 4, .num_tokens = 1, .num_heads = 1};
  args.head_dim = 4;
  args.rotary_dim = 4;
  args.positions = &position;
  args.table = floats_.data();
  args.table_positions = 10;
  EXPECT_DEATH((*backend_)(args), "positions\\[0\\] is 10");
}

TEST_F(ContractDeathTest, KvWriteToASlotPastTheCacheOrOfAnUnknownFormat) {
  const int64_t slot = 32;
  KvWriteArgs args{floats_.data(), floats_.data(), 4, 1, &slot, {}};
  args.cache = {floats_.data(), floats_.data(), DType::kF32, 2, 1, 4, 16};
  EXPECT_DEATH((*backend_)(args), "slots\\[0\\] is 32, the cache has 32");
  args.cache.dtype = DType::kQ4_0;
  EXPECT_DEATH((*backend_)(args), "KV cache of Q4_0");
}

TEST_F(ContractDeathTest, AttentionOverABlockThatDoesNotExistOrMoreQueriesThanContext) {
  const std::vector<int32_t> offsets = {0, 3};
  std::vector<int32_t> lengths = {17};
  const std::vector<BlockId> table = {0, -1};
  PagedAttentionArgs args;
  args.queries = floats_.data();
  args.query_stride = 8;
  args.num_heads = 2;
  args.cache = {floats_.data(), floats_.data(), DType::kF32, 2, 1, 4, 16};
  args.num_sequences = 1;
  args.query_offsets = offsets.data();
  args.context_lengths = lengths.data();
  args.block_tables = table.data();
  args.block_table_stride = 2;
  args.out = floats_.data();
  EXPECT_DEATH((*backend_)(args), "block 1 of its table is -1");
  lengths[0] = 2;
  EXPECT_DEATH((*backend_)(args), "3 queries, context length 2");
}

}  // namespace
}  // namespace quire::ops
