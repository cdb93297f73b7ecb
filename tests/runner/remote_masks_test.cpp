#include "runner/remote_masks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace quire::runner {
namespace {

using testing::HasSubstr;

// Behind n tokens token n alone may follow; behind three all may, and a fourth has trouble.
class Counting final : public TokenConstraint {
 public:
  std::unique_ptr<State> start() const override { return std::make_unique<Counted>(*this); }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }
  mutable int num_accepted = 0;  // by all states

 private:
  struct Counted final : State {
    explicit Counted(const Counting& constraint) : of(constraint) {}
    std::unique_ptr<State> clone() const override { return std::make_unique<Counted>(*this); }
    bool allowed(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0U);
      mask[static_cast<size_t>(had) / 32] = 1U << (had % 32);
      return had < 3;
    }
    bool accept(TokenId token) override {
      if (had < 3 && token != had) return false;
      ++had;
      ++of.num_accepted;
      return true;
    }
    Status trouble() const override { return had > 3 ? invalid_argument("the constraint is in trouble") : Status(); }
    const Counting& of;
    int had = 0;
  };
};

class RemoteMasksTest : public testing::Test {
 protected:
  std::unique_ptr<TokenMasks::State> start() const { return remote_->find(held_->id)->start(); }
  static std::vector<uint32_t> mask_of(TokenMasks::State& state) {
    std::vector<uint32_t> mask(2, 77);
    return state.allowed(mask) ? mask : std::vector<uint32_t>();
  }

  const std::shared_ptr<const Counting> constraint_ = std::make_shared<const Counting>();
  const std::shared_ptr<ConstraintTable> table_ = std::make_shared<ConstraintTable>();
  std::shared_ptr<const HeldConstraint> held_ = table_->add(constraint_);
  const std::shared_ptr<MaskServer> server_ = std::make_shared<MaskServer>(table_);
  const std::shared_ptr<const ConstraintSource> remote_ =
      make_remote_constraints([server = server_](std::string_view question) { return server->answer(question); });
};

TEST_F(RemoteMasksTest, SayWhatTheConstraintItselfSays) {
  const auto state = start();
  for (TokenId token = 0; token < 3; ++token) {
    EXPECT_EQ(mask_of(*state), (std::vector<uint32_t>{1U << token, 0}));
    EXPECT_FALSE(state->accept(token + 1)) << "and nothing changes";
    EXPECT_TRUE(state->accept(token));
  }
  EXPECT_TRUE(mask_of(*state).empty()) << "all may follow";
  EXPECT_TRUE(state->trouble().ok());
  EXPECT_TRUE(state->accept(40));
  EXPECT_EQ(state->trouble().message(), "the constraint is in trouble");
}

TEST_F(RemoteMasksTest, EachTokenIsTakenOnceAndACopyGoesOnByItself) {
  const auto state = start();
  for (const TokenId token : {0, 1}) ASSERT_TRUE(state->accept(token));
  EXPECT_EQ(constraint_->num_accepted, 2);
  const auto copy = state->clone();
  ASSERT_TRUE(state->accept(2));
  EXPECT_EQ(constraint_->num_accepted, 3);
  EXPECT_EQ(mask_of(*copy), (std::vector<uint32_t>{4, 0}));
}

TEST_F(RemoteMasksTest, AnAnswersStateGoesWithIt) {
  for (int i = 0; i < 100; ++i) {
    const auto state = start();
    ASSERT_TRUE(state->accept(0));
    EXPECT_EQ(server_->num_answers(), 1u);
  }
  EXPECT_EQ(server_->num_answers(), 0u);
}

TEST_F(RemoteMasksTest, AConstraintThatIsGoneLetsNothingFollowAndSaysWhy) {
  const auto masks = remote_->find(held_->id);
  held_.reset();
  EXPECT_EQ(remote_->find(1), nullptr);
  const auto state = masks->start();
  EXPECT_EQ(mask_of(*state), (std::vector<uint32_t>{0, 0}));
  EXPECT_FALSE(state->accept(0));
  EXPECT_THAT(state->trouble().message(), HasSubstr("constraint 1 is unknown to the engine"));
}

TEST_F(RemoteMasksTest, WhatIsNoQuestionIsRefused) {
  EXPECT_FALSE(server_->answer("nonsense").ok());
  EXPECT_THAT(
      server_->answer(encode(MaskQuestion{.constraint = 1, .answer = 1, .num_words = 1u << 31})).status().message(),
      HasSubstr("words is asked for"));
}

}  // namespace
}  // namespace quire::runner
