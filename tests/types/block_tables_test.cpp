#include "types/block_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace quire {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Both ends, and what went from one to the other.
class ToldTables : public testing::Test {
 protected:
  void tell(const std::vector<BlockId>& table, int32_t group = 0) {
    changes_.clear();
    blocks_.clear();
    telling_.tell(7, group, table, changes_, blocks_);
    size_t at = 0;
    for (const TableChange& change : changes_) {
      const auto count = static_cast<size_t>(change.count);
      told_.take(change, std::span(blocks_).subspan(at, count));
      at += count;
    }
    EXPECT_EQ(at, blocks_.size());
    EXPECT_TRUE(std::ranges::equal(told_.table(static_cast<size_t>(group)), table));
  }
  static TableChange change(int32_t num_blocks, int32_t first, int32_t count) {
    return {.id = 7, .num_blocks = num_blocks, .first = first, .count = count};
  }

  BlockTables telling_;
  BlockTables told_;
  std::vector<TableChange> changes_;
  std::vector<BlockId> blocks_;
};

TEST_F(ToldTables, AreToldWholeAtFirst) {
  tell({4, 5, 6});
  EXPECT_THAT(changes_, ElementsAre(change(3, 0, 3)));
  EXPECT_THAT(blocks_, ElementsAre(4, 5, 6));
}

TEST_F(ToldTables, ThatAreAsTheyWereAreNotToldAgain) {
  tell({4, 5, 6});
  tell({4, 5, 6});
  EXPECT_THAT(changes_, IsEmpty());
}

TEST_F(ToldTables, OfWhichABlockIsNewOneIsCopiedAndOneIsBehindTheWindow) {
  tell({4, 5, 6, 7});
  tell({kNoBlock, 5, 6, 9, 8});
  EXPECT_THAT(changes_, ElementsAre(change(5, 0, 1), change(5, 3, 2)));
  EXPECT_THAT(blocks_, ElementsAre(kNoBlock, 9, 8));
}

TEST_F(ToldTables, ThatBecomeShorterSaySo) {
  tell({4, 5, 6});
  tell({4, 5});
  EXPECT_THAT(changes_, ElementsAre(change(2, 0, 0)));
  tell({4, 5, 6});
  EXPECT_THAT(changes_, ElementsAre(change(3, 2, 1)));
}

TEST_F(ToldTables, OfSeveralGroupsAreToldApart) {
  tell({1, 2}, 0);
  tell({3}, 1);
  EXPECT_EQ(told_.num_groups(), 2u);
  EXPECT_THAT(told_.table(0), ElementsAre(1, 2));
  EXPECT_THAT(told_.table(2), IsEmpty());
}

TEST_F(ToldTables, AreAlikeAtBothEndsWhateverHappensToThem) {
  std::mt19937 random(20261125);
  const auto below = [&random](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  std::vector<BlockId> tables[2];
  for (int step = 0; step < 20'000; ++step) {
    const size_t group = below(2);
    std::vector<BlockId>& table = tables[group];
    for (size_t edits = below(4); edits > 0; --edits) {
      if (below(3) == 0 || table.empty()) {
        table.push_back(static_cast<BlockId>(below(50)));
      } else if (below(8) == 0) {
        table.resize(below(table.size() + 1));
      } else {
        table[below(table.size())] = below(2) == 0 ? kNoBlock : static_cast<BlockId>(below(50));
      }
    }
    ASSERT_NO_FATAL_FAILURE(tell(table, static_cast<int32_t>(group)));
    ASSERT_FALSE(HasFailure()) << "step " << step;
  }
}

}  // namespace
}  // namespace quire
