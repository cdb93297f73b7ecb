// The memory that adapters take turns on.
#include "runner/adapter_memory.h"

#include <map>
#include <random>

#include <gtest/gtest.h>

#include "ops/reference/reference_backend.h"

namespace quire::runner {
namespace {

constexpr size_t kPiece = AdapterMemory::kAlign;

class AdapterMemoryTest : public testing::Test {
 protected:
  std::unique_ptr<ops::Backend> backend_ = ops::make_reference_backend();
  AdapterMemory memory_{backend_->allocator(), 8 * kPiece};
};

TEST_F(AdapterMemoryTest, GivesAllOfItAndThenNothing) {
  void* all = memory_.allocate(8 * kPiece);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(memory_.allocate(1), nullptr);
  memory_.release(all, 8 * kPiece);
  EXPECT_EQ(memory_.allocate(8 * kPiece + 1), nullptr);
  EXPECT_EQ(memory_.allocate(8 * kPiece), all);
}

TEST_F(AdapterMemoryTest, WhatLiesInPiecesIsOneAgainWhenAllOfItIsFree) {
  std::vector<void*> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(memory_.allocate(kPiece - 5));
  for (const size_t i : {1, 3, 5}) memory_.release(pieces[i], kPiece - 5);
  EXPECT_EQ(memory_.allocate(2 * kPiece), nullptr) << "three pieces are free, of which none touch";
  memory_.release(pieces[4], kPiece - 5);
  void* three = memory_.allocate(3 * kPiece);
  EXPECT_EQ(three, pieces[3]);
}

TEST_F(AdapterMemoryTest, RandomPiecesNeverOverlap) {
  std::mt19937 random(3);
  std::map<uint8_t*, size_t> taken;
  for (int step = 0; step < 2000; ++step) {
    if (random() % 2 == 0 && !taken.empty()) {
      auto piece = std::next(taken.begin(), static_cast<int64_t>(random() % taken.size()));
      memory_.release(piece->first, piece->second);
      taken.erase(piece);
      continue;
    }
    const size_t bytes = 1 + random() % (3 * kPiece);
    auto* piece = static_cast<uint8_t*>(memory_.allocate(bytes));
    if (piece == nullptr) continue;
    const auto next = taken.lower_bound(piece);
    ASSERT_TRUE(next == taken.end() || piece + bytes <= next->first) << "seed 3, step " << step;
    ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= piece) << "step " << step;
    taken.emplace(piece, bytes);
  }
  for (const auto& [piece, bytes] : taken) memory_.release(piece, bytes);
  EXPECT_NE(memory_.allocate(8 * kPiece), nullptr);
}

}  // namespace
}  // namespace quire::runner
