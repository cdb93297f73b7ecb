#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::Random;

// Two pools of the same geometry with random bytes.
struct Pool {
  Pool(DType dtype, int64_t num_blocks, Random& random) {
    view = {nullptr, nullptr, dtype, num_blocks, 3, 20, 16};
    for (std::vector<uint8_t>* part : {&keys, &values}) {
      part->resize(static_cast<size_t>(num_blocks * block_bytes(view)));
      for (uint8_t& byte : *part) byte = static_cast<uint8_t>(random.between(0, 255));
    }
    view.keys = keys.data();
    view.values = values.data();
  }
  std::vector<uint8_t> block(const std::vector<uint8_t>& part, BlockId id) const {
    const auto at = part.begin() + id * block_bytes(view);
    return {at, at + block_bytes(view)};
  }
  KvCacheView view;
  std::vector<uint8_t> keys;
  std::vector<uint8_t> values;
};

void copy(Backend& backend, const KvCacheView& from, const KvCacheView& to, const std::vector<BlockCopy>& copies) {
  CopyBlocksArgs args;
  args.source = block_memory(from);
  args.destination = block_memory(to);
  args.copies = copies.data();
  args.num_copies = static_cast<int64_t>(copies.size());
  backend(args);
}

class CopyBlocksTest : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  std::unique_ptr<Backend> backend() const {
    const std::string& name = std::get<0>(GetParam());
    return name == "reference" ? make_reference_backend() : testing::make_backend(name);
  }
  DType dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(CopyBlocksTest, WithinACacheGivesTheDestinationsTheBytesOfTheirSourcesAndLeavesTheRest) {
  auto runner = backend();
  if (runner == nullptr) GTEST_SKIP() << "this machine lacks " << std::get<0>(GetParam());
  Random random(1);
  Pool pool(dtype(), 40, random);
  const Pool before = pool;
  // 7 twice: two sequences leave the same block.
  copy(*runner, pool.view, pool.view, {{7, 3}, {7, 39}, {0, 12}, {38, 1}});
  for (BlockId id = 0; id < 40; ++id) {
    const BlockId source = id == 3 || id == 39 ? 7 : id == 12 ? 0 : id == 1 ? 38 : id;
    EXPECT_EQ(pool.block(pool.keys, id), before.block(before.keys, source)) << "keys of block " << id;
    EXPECT_EQ(pool.block(pool.values, id), before.block(before.values, source)) << "values of block " << id;
  }
}

TEST_P(CopyBlocksTest, OutToAnotherPoolAndBackToOtherPlacesRestoresEveryByte) {
  auto runner = backend();
  if (runner == nullptr) GTEST_SKIP() << "this machine lacks " << std::get<0>(GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  Pool pool(dtype(), 120, random);
  Pool swapped(dtype(), 70, random);
  const Pool before = pool;
  std::vector<BlockCopy> out;
  std::vector<BlockCopy> back;
  for (BlockId i = 0; i < 60; ++i) {
    const BlockId away = (i * 11 + 2) % 70;
    out.push_back({2 * i, away});
    back.push_back({away, 2 * i + 1});
  }
  copy(*runner, pool.view, swapped.view, out);
  EXPECT_EQ(pool.keys, before.keys);
  copy(*runner, swapped.view, pool.view, back);
  for (BlockId i = 0; i < 60; ++i) {
    EXPECT_EQ(pool.block(pool.keys, 2 * i + 1), before.block(before.keys, 2 * i));
    EXPECT_EQ(pool.block(pool.values, 2 * i + 1), before.block(before.values, 2 * i));
  }
}

TEST_P(CopyBlocksTest, BesideOtherOpsAreDoneInTheirOrderForWhoWaits) {
  auto runner = backend();
  if (runner == nullptr) GTEST_SKIP() << "this machine lacks " << std::get<0>(GetParam());
  Random random(5);
  Pool pool(dtype(), 8, random);
  Pool swapped(dtype(), 8, random);
  const Pool before = pool;
  copy(*runner, pool.view, pool.view, {{1, 0}});
  runner->on_side_stream(3, [&] {
    copy(*runner, pool.view, swapped.view, {{0, 5}});
    copy(*runner, swapped.view, pool.view, {{6, 0}});
  });
  runner->on_side_stream(0, [&] { copy(*runner, pool.view, pool.view, {{0, 7}}); });
  runner->wait_for(3);
  runner->wait_for(0);
  copy(*runner, pool.view, pool.view, {{7, 2}});
  runner->synchronise();
  EXPECT_EQ(swapped.block(swapped.keys, 5), before.block(before.keys, 1));
  EXPECT_EQ(pool.block(pool.keys, 2), swapped.block(swapped.keys, 6));
  EXPECT_EQ(pool.block(pool.values, 2), swapped.block(swapped.values, 6));
}

TEST_P(CopyBlocksTest, OfOneMemoryMovesTheBlocksOfThatAlone) {
  auto runner = backend();
  if (runner == nullptr) GTEST_SKIP() << "this machine lacks " << std::get<0>(GetParam());
  Random random(6);
  Pool pool(dtype(), 8, random);
  Pool swapped(dtype(), 5, random);
  const Pool before = pool;
  const Pool swapped_before = swapped;
  pool.view.values = swapped.view.values = nullptr;
  pool.view.values_are_keys = swapped.view.values_are_keys = true;
  copy(*runner, pool.view, swapped.view, {{7, 0}, {2, 4}});
  copy(*runner, swapped.view, pool.view, {{0, 1}});
  EXPECT_EQ(swapped.block(swapped.keys, 4), before.block(before.keys, 2));
  EXPECT_EQ(pool.block(pool.keys, 1), before.block(before.keys, 7));
  EXPECT_EQ(pool.values, before.values);
  EXPECT_EQ(swapped.values, swapped_before.values);
}

TEST_P(CopyBlocksTest, OfNothingDoesNothing) {
  auto runner = backend();
  if (runner == nullptr) GTEST_SKIP() << "this machine lacks " << std::get<0>(GetParam());
  Random random(2);
  Pool pool(dtype(), 4, random);
  const Pool before = pool;
  copy(*runner, pool.view, pool.view, {});
  EXPECT_EQ(pool.keys, before.keys);
  EXPECT_EQ(pool.values, before.values);
}

INSTANTIATE_TEST_SUITE_P(Backends, CopyBlocksTest,
                         ::testing::Combine(::testing::Values("reference", "portable", "avx2", "cuda"),
                                            ::testing::ValuesIn(testing::kKvFormats)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::string(name(std::get<1>(test.param)));
                         });

TEST(CopyBlocksDeathTest, CopiesThatCannotBeMeantAreBugs) {
  auto backend = make_reference_backend();
  Random random(3);
  Pool pool(DType::kF16, 4, random);
  Pool other(DType::kF16, 2, random);
  Pool of_bytes(DType::kI8, 4, random);
  EXPECT_DEATH(copy(*backend, pool.view, pool.view, {{4, 0}}), "copy 0 is of block 4, its pool has 4");
  EXPECT_DEATH(copy(*backend, pool.view, pool.view, {{-1, 0}}), "copy 0 is of block -1");
  EXPECT_DEATH(copy(*backend, pool.view, other.view, {{0, 1}, {3, 2}}), "copy 1 is to block 2, its pool has 2");
  EXPECT_DEATH(copy(*backend, pool.view, pool.view, {{0, 2}, {1, 2}}), "two copies are to block 2");
  EXPECT_DEATH(copy(*backend, pool.view, pool.view, {{0, 1}, {1, 2}}), "block 1 is the source of copy 1");
  EXPECT_DEATH(copy(*backend, pool.view, pool.view, {{2, 2}}), "block 2 is the source of copy 0");
  KvCacheView apart = pool.view;
  apart.stride = 2048;
  EXPECT_DEATH(copy(*backend, apart, pool.view, {{0, 1}}), "blocks of 1920 B lie 2048 B apart");
  EXPECT_DEATH(copy(*backend, pool.view, of_bytes.view, {{0, 1}}),
               "blocks of 2 x 1920 B copied to blocks of 2 x 1152 B");
}

TEST(CopyBlocks, BetweenPoolsABlockMayBeSourceHereAndDestinationThere) {
  auto backend = make_reference_backend();
  Random random(4);
  Pool pool(DType::kF16, 4, random);
  Pool other(DType::kF16, 4, random);
  copy(*backend, pool.view, other.view, {{0, 1}, {1, 2}});
  EXPECT_EQ(other.block(other.keys, 1), pool.block(pool.keys, 0));
  EXPECT_EQ(other.block(other.values, 2), pool.block(pool.values, 1));
}

}  // namespace
}  // namespace quire::ops
