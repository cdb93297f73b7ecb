#include "ops/cpu/panel_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace quire::ops::cpu {
namespace {

TEST(PanelArenaTest, PiecesAreAlignedApartAndWritableInAnyOrderOfRelease) {
  std::mt19937 random(7);
  PanelArena arena;
  std::vector<std::pair<unsigned char*, size_t>> pieces;
  for (int round = 0; round < 400; ++round) {
    const size_t bytes = random() % 8 == 0 ? random() % (40u << 20) : random() % 100000;
    auto* piece = static_cast<unsigned char*>(arena.allocate(bytes));
    ASSERT_NE(piece, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % 64, 0u);
    const size_t touched = std::min<size_t>(bytes, 4096);
    std::memset(piece, round & 0xff, touched);
    if (bytes > touched) piece[bytes - 1] = static_cast<unsigned char>(round);
    pieces.emplace_back(piece, bytes);
    if (random() % 2 == 0) {
      const size_t gone = random() % pieces.size();
      arena.release(pieces[gone].first, pieces[gone].second);
      pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(gone));
    }
  }
  for (size_t a = 0; a < pieces.size(); ++a) {
    for (size_t b = 0; b < a; ++b) {
      const bool apart = pieces[a].first + pieces[a].second <= pieces[b].first ||
                         pieces[b].first + pieces[b].second <= pieces[a].first;
      EXPECT_TRUE(apart);
    }
  }
  for (const auto& [piece, bytes] : pieces) arena.release(piece, bytes);
}

TEST(PanelArenaTest, APieceLargerThanAMappingGetsOneOfItsOwnAndWhatNoMachineHasIsRefused) {
  PanelArena arena;
  const size_t large = size_t{100} << 20;
  auto* piece = static_cast<unsigned char*>(arena.allocate(large));
  ASSERT_NE(piece, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % (2u << 20), 0u);
  piece[large - 1] = 1;
  EXPECT_EQ(arena.allocate(std::numeric_limits<size_t>::max()), nullptr);
  EXPECT_EQ(arena.allocate(size_t{1} << 62), nullptr);
  arena.release(piece, large);
  arena.release(nullptr, 0);
}

}  // namespace
}  // namespace quire::ops::cpu
