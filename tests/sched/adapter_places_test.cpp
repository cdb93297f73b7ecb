// How many different adapters run at once, and that nobody is kept out for ever.
#include <gtest/gtest.h>

#include <set>

#include "tests/sched/paged_driver.h"

namespace quire::sched {
namespace {

using testing_support::make_request;
using testing_support::PagedDriver;

SchedulerConfig places_config(int32_t max_adapters) {
  SchedulerConfig config;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 64;
  config.max_model_len = 512;
  config.num_blocks = 256;
  config.block_size = 4;
  config.watermark = 0;
  config.max_adapters = max_adapters;
  return config;
}

SequenceRequest adapted(SequenceId id, int32_t adapter, int32_t prompt, int32_t answer) {
  SequenceRequest request = make_request(id, prompt, answer);
  request.context.lora_id = adapter;
  return request;
}

std::set<SequenceId> running(PagedDriver& driver, SequenceId last) {
  std::set<SequenceId> ids;
  for (SequenceId id = 1; id <= last; ++id) {
    if (driver.run_of(id) != nullptr) ids.insert(id);
  }
  return ids;
}

TEST(AdapterPlaces, AStepHasNoMoreDifferentAdaptersThanItMay) {
  PagedDriver driver(places_config(2));
  const int32_t adapters[] = {7, 7, 8, 9, 0, 8, 10};
  for (SequenceId id = 1; id <= 7; ++id) ASSERT_TRUE(driver.add(adapted(id, adapters[id - 1], 4, 6)).ok());
  ASSERT_TRUE(driver.step());
  // The third adapter waits; those that need no place of their own go before it.
  EXPECT_EQ(running(driver, 7), (std::set<SequenceId>{1, 2, 3, 5, 6}));
  EXPECT_TRUE(driver.run_to_end());
  for (SequenceId id = 1; id <= 7; ++id) EXPECT_EQ(driver.answers[id].tokens.size(), 6u) << id;
}

TEST(AdapterPlaces, WithoutABoundAllRun) {
  PagedDriver driver(places_config(0));
  for (SequenceId id = 1; id <= 5; ++id) ASSERT_TRUE(driver.add(adapted(id, static_cast<int32_t>(id), 4, 2)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(running(driver, 5).size(), 5u);
  EXPECT_TRUE(driver.run_to_end());
}

TEST(AdapterPlaces, AStreamOfRequestsForOneAdapterDoesNotKeepAnotherOutForEver) {
  PagedDriver driver(places_config(1));
  ASSERT_TRUE(driver.add(adapted(1, 7, 4, 8)).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.add(adapted(2, 8, 4, 1)).ok());
  SequenceId next = 3;
  // Always some of the first adapter that run, and more that wait.
  int steps = 0;
  while (!driver.answers[2].finished()) {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(driver.add(adapted(next++, 7, 4, 3)).ok());
    ASSERT_TRUE(driver.step());
    ASSERT_LT(++steps, 200) << "kept out";
  }
  EXPECT_GT(steps, 10) << "it was let in before anybody could overtake it, so that nothing was seen";
  EXPECT_TRUE(driver.run_to_end());
}

TEST(AdapterPlaces, SoItIsWithinATenantBesideOthers) {
  PagedDriver driver(places_config(1));
  ASSERT_TRUE(driver.add(adapted(1, 7, 4, 8)).ok());
  ASSERT_TRUE(driver.step());
  SequenceRequest kept_out = adapted(2, 8, 4, 1);
  kept_out.tenant = 1;
  ASSERT_TRUE(driver.add(kept_out).ok());
  SequenceId next = 3;
  int steps = 0;
  while (!driver.answers[2].finished()) {
    for (int32_t tenant = 0; tenant < 2; ++tenant) {
      SequenceRequest more = adapted(next++, 7, 4, 3);
      more.tenant = tenant;
      ASSERT_TRUE(driver.add(more).ok());
    }
    ASSERT_TRUE(driver.step());
    ASSERT_LT(++steps, 1000) << "kept out";
  }
  EXPECT_TRUE(driver.run_to_end());
}

TEST(AdapterPlaces, BlocksOfOneAdaptersPromptsAreNotAnothers) {
  PagedDriver driver(places_config(4));
  ASSERT_TRUE(driver.add(adapted(1, 7, 32, 1)).ok());
  EXPECT_TRUE(driver.run_to_end());
  SequenceRequest same = adapted(2, 7, 32, 1);
  SequenceRequest other = adapted(3, 8, 32, 1);
  SequenceRequest plain = adapted(4, 0, 32, 1);
  same.prompt = other.prompt = plain.prompt = adapted(1, 7, 32, 1).prompt;
  for (const SequenceRequest& request : {same, other, plain}) {
    ASSERT_TRUE(driver.add(request).ok());
    ASSERT_TRUE(driver.step());
    const auto* run = driver.run_of(request.id);
    ASSERT_NE(run, nullptr);
    EXPECT_EQ(run->num_computed_tokens > 0, request.id == 2) << request.id;
    EXPECT_TRUE(driver.run_to_end());
  }
}

}  // namespace
}  // namespace quire::sched
