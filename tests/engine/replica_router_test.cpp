#include "engine/replica_router.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire::engine {
namespace {

std::vector<TokenId> text_of(TokenId first, size_t size) {
  std::vector<TokenId> tokens(size);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

TEST(ReplicaRouter, IdleReplicasTakeTurns) {
  ReplicaRouter router(3, 16);
  const std::vector<int64_t> idle(3, 0);
  std::vector<int> counts(3);
  for (int i = 0; i < 30; ++i) ++counts[static_cast<size_t>(router.choose(text_of(i * 1000, 100), {}, idle))];
  EXPECT_EQ(counts, (std::vector<int>{10, 10, 10}));
}

TEST(ReplicaRouter, APromptGoesWhereItsBeginningWasSent) {
  ReplicaRouter router(4, 16);
  const std::vector<int64_t> loads(4, 1);
  std::vector<TokenId> prompt = text_of(0, 200);
  const int first = router.choose(prompt, {}, loads);
  for (int i = 0; i < 8; ++i) {
    prompt.push_back(5000 + i);
    EXPECT_EQ(router.choose(prompt, {}, loads), first);
    router.choose(text_of(100000 * (i + 1), 50), {}, loads);  // others in between
  }
}

TEST(ReplicaRouter, NotWhereOthersHaveMuchLessToDo) {
  ReplicaRouter router(2, 16);
  const std::vector<TokenId> prompt = text_of(0, 160);
  const auto first = static_cast<size_t>(router.choose(prompt, {}, std::vector<int64_t>{0, 0}));
  std::vector<int64_t> loads(2, 0);
  loads[first] = 2;  // as much as the prompt would be
  EXPECT_EQ(router.choose(prompt, {}, loads), static_cast<int>(first));
  loads[first] = 10;
  EXPECT_EQ(router.choose(prompt, {}, loads), static_cast<int>(1 - first));
  // From now on both have it.
  loads = {3, 3};
  loads[first] = 2;
  EXPECT_EQ(router.choose(prompt, {}, loads), static_cast<int>(first));
  loads = {2, 2};
  loads[first] = 3;
  EXPECT_EQ(router.choose(prompt, {}, loads), static_cast<int>(1 - first));
}

TEST(ReplicaRouter, AnotherSaltSharesNothing) {
  ReplicaRouter router(2, 16);
  const std::vector<TokenId> prompt = text_of(0, 320);
  const auto first = static_cast<size_t>(router.choose(prompt, {"a", ""}, std::vector<int64_t>{0, 0}));
  std::vector<int64_t> loads(2, 0);
  loads[first] = 1;
  EXPECT_EQ(router.choose(prompt, {"b", ""}, loads), static_cast<int>(1 - first));
  EXPECT_EQ(router.choose(prompt, {"a", ""}, loads), static_cast<int>(first));
}

TEST(ReplicaRouter, AnAdapterGoesWhereItWasAskedForAndSharesNothingElse) {
  ReplicaRouter router(2, 16);
  const std::vector<TokenId> prompt = text_of(0, 320);
  const auto first = static_cast<size_t>(router.choose(prompt, {"", "pirate"}, std::vector<int64_t>{0, 0}));
  std::vector<int64_t> loads(2, 0);
  for (int i = 0; i < 4; ++i) {  // other prompts, too short for a block
    EXPECT_EQ(router.choose(text_of(1000 * i, 3), {"", "pirate"}, loads), static_cast<int>(first));
  }
  loads[first] = 1;
  EXPECT_EQ(router.choose(prompt, {"", "rhyme"}, loads), static_cast<int>(1 - first));
  EXPECT_EQ(router.choose(prompt, {}, loads), static_cast<int>(1 - first));
  EXPECT_EQ(router.choose(prompt, {"", "pirate"}, loads), static_cast<int>(first));
}

TEST(ReplicaRouter, ForgetsWhatIsOldAndStaysSmall) {
  ReplicaRouter router(2, 1);
  const std::vector<int64_t> idle(2, 0);
  for (int i = 0; i < 3000; ++i) router.choose(text_of(i * 100, 100), {}, idle);
  const std::vector<TokenId> recent = text_of(2999 * 100, 100);
  std::vector<int64_t> loads(2, 0);
  const auto where = static_cast<size_t>(router.choose(recent, {}, idle));
  loads[where] = 1;
  EXPECT_EQ(router.choose(recent, {}, loads), static_cast<int>(where));
}

}  // namespace
}  // namespace quire::engine
