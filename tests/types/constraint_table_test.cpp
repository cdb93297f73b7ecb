#include "types/constraint_table.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

class Anything final : public TokenConstraint {
 public:
  std::unique_ptr<State> start() const override { return nullptr; }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }
};

TEST(ConstraintTable, FindsWhatIsHeldByItsNumberAndNothingElse) {
  ConstraintTable table;
  const auto constraint = std::make_shared<const Anything>();
  auto held = table.add(constraint);
  const auto other = table.add(std::make_shared<const Anything>());
  EXPECT_NE(held->id, 0u);
  EXPECT_NE(held->id, other->id);
  EXPECT_EQ(table.find(held->id), constraint);
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(other->id + 1), nullptr);
  const ConstraintId id = held->id;
  held.reset();
  EXPECT_EQ(table.find(id), nullptr) << "nobody holds it, though the constraint itself is there";
}

TEST(ConstraintTable, KeepsNoNumbersOfRequestsThatAreOver) {
  ConstraintTable table;
  const auto constraint = std::make_shared<const Anything>();
  const auto held = table.add(constraint);
  for (int i = 0; i < 10'000; ++i) table.add(constraint);
  EXPECT_LE(table.size(), 64u);
  EXPECT_EQ(table.find(held->id), constraint);
}

}  // namespace
}  // namespace quire
