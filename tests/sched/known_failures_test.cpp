// Where schedulers over a shared, paged cache are known to break, a test each. The memory below checks every read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sched/paged_driver.h"

namespace quire::sched {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing_support::make_request;
using testing_support::PagedDriver;

SchedulerConfig caching_config() {
  SchedulerConfig config;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 32;
  config.max_model_len = 128;
  config.num_blocks = 64;
  config.block_size = 4;
  config.watermark = 0;
  return config;
}

SequenceRequest salted(SequenceRequest request, const char* salt) {
  request.context.salt = salt;
  return request;
}

// ---- prefix hits ----

struct PreemptionMode : testing::TestWithParam<sched::PreemptionMode> {
  SchedulerConfig config() const {
    SchedulerConfig config = caching_config();
    config.preemption_mode = GetParam();
    config.num_swap_blocks = 16;
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, PreemptionMode,
                         testing::Values(sched::PreemptionMode::kRecompute, sched::PreemptionMode::kSwap));

TEST_P(PreemptionMode, OfARequestThatHasPrefixHits) {
  SchedulerConfig config = this->config();
  config.num_blocks = 13;  // 3 shared and 5 of each, when the first wants another
  PagedDriver driver(config);
  const SequenceRequest first = make_request(1, 13, 24);
  const SequenceRequest second = make_request(2, 13, 24);
  ASSERT_TRUE(driver.add(first).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.add(second).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_NE(driver.run_of(2), nullptr);
  EXPECT_EQ(driver.run_of(2)->num_computed_tokens, 12);
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_GE(driver.scheduler.stats().preemptions, 1u);
  EXPECT_EQ(driver.scheduler.stats().swaps > 0, GetParam() == sched::PreemptionMode::kSwap);
  EXPECT_EQ(driver.answers[1].tokens, driver.alone(first, 24));
  EXPECT_EQ(driver.answers[2].tokens, driver.alone(second, 24));
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
}

TEST_P(PreemptionMode, AnAbortMeanwhileGivesEverythingBack) {
  SchedulerConfig config = this->config();
  config.num_blocks = 14;
  PagedDriver driver(config);
  const SequenceRequest first = make_request(1, 13, 24);
  ASSERT_TRUE(driver.add(first).ok());
  ASSERT_TRUE(driver.add(make_request(2, 14, 24)).ok());
  while (driver.scheduler.stats().preemptions == 0) ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.scheduler.stats().swapped, GetParam() == sched::PreemptionMode::kSwap ? 1 : 0);
  EXPECT_EQ(driver.scheduler.stats().swap_slots_used > 0, GetParam() == sched::PreemptionMode::kSwap);
  EXPECT_TRUE(driver.scheduler.cancel(2));
  driver.scheduler.check_invariants();
  EXPECT_EQ(driver.scheduler.stats().swapped, 0);
  EXPECT_EQ(driver.scheduler.stats().swap_slots_used, 0);
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[1].tokens, driver.alone(first, 24));
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
}

TEST(KnownFailures, AFullHitStillComputesItsLastToken) {
  PagedDriver driver(caching_config());
  ASSERT_TRUE(driver.add(make_request(1, 8, 2)).ok());
  ASSERT_TRUE(driver.run_to_end());
  const SequenceRequest again = make_request(2, 8, 5);
  ASSERT_TRUE(driver.add(again).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_NE(driver.run_of(2), nullptr);
  EXPECT_EQ(driver.run_of(2)->num_computed_tokens, 7);
  EXPECT_EQ(driver.run_of(2)->num_new_tokens, 1);
  EXPECT_TRUE(driver.run_of(2)->samples);
  EXPECT_THAT(driver.plan.copies, SizeIs(1));
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[2].tokens, driver.alone(again, 5));
}

TEST(KnownFailures, AFullHitOfAPromptThatIsOnlyScoredEnds) {
  PagedDriver driver(caching_config());
  ASSERT_TRUE(driver.add(make_request(1, 8, 2)).ok());
  ASSERT_TRUE(driver.run_to_end());
  ASSERT_TRUE(driver.add(make_request(2, 8, 0)).ok());
  ASSERT_TRUE(driver.run_to_end(5));
  EXPECT_EQ(driver.answers[2].last.finish, FinishReason::kLength);
}

TEST(KnownFailures, TwoEqualPromptsOfOneStepMakeNoBlocksTwice) {
  PagedDriver driver(caching_config());
  const SequenceRequest first = make_request(1, 13, 3);
  const SequenceRequest second = make_request(2, 13, 3);
  ASSERT_TRUE(driver.add(first).ok());
  ASSERT_TRUE(driver.add(second).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_THAT(driver.plan.scheduled, SizeIs(2));
  EXPECT_EQ(driver.run_of(2)->num_computed_tokens, 12);
  EXPECT_EQ(driver.plan.num_tokens, 13 + 1);
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 3 + 1 + 1);
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[1].tokens, driver.alone(first, 3));
  EXPECT_EQ(driver.answers[2].tokens, driver.alone(second, 3));
}

TEST(KnownFailures, EqualPromptsShareAlsoWhenTheyAreComputedInChunks) {
  SchedulerConfig config = caching_config();
  config.long_prefill_token_threshold = 8;
  config.max_num_partial_prefills = 3;
  PagedDriver driver(config);
  std::vector<SequenceRequest> requests;
  for (SequenceId id = 1; id <= 3; ++id) {
    requests.push_back(make_request(id, 49, 1));
    ASSERT_TRUE(driver.add(requests.back()).ok());
  }
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.plan.num_tokens, 24);
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 6) << "they compute different parts of it";
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.scheduler.stats().scheduled_tokens, 48u + 3u);
  for (const SequenceRequest& request : requests) {
    EXPECT_EQ(driver.answers[request.id].tokens, driver.alone(request, 1));
  }
}

TEST(KnownFailures, HitsWhileTheProducerStillRunsReachIntoItsAnswer) {
  PagedDriver driver(caching_config());
  const SequenceRequest first = make_request(1, 6, 30);
  ASSERT_TRUE(driver.add(first).ok());
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(driver.step());
  ASSERT_FALSE(driver.answers[1].finished());
  SequenceRequest next = make_request(2, 6, 4);
  const std::vector<TokenId> said = driver.alone(first, 10);
  next.prompt.insert(next.prompt.end(), said.begin(), said.end());
  next.prompt.push_back(7);
  ASSERT_TRUE(driver.add(next).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_NE(driver.run_of(2), nullptr);
  EXPECT_EQ(driver.run_of(2)->num_computed_tokens, 16);
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[2].tokens, driver.alone(next, 4));
}

TEST(KnownFailures, SaltsNeverShare) {
  PagedDriver driver(caching_config());
  const SequenceRequest first = salted(make_request(1, 13, 3), "a");
  const SequenceRequest second = salted(make_request(2, 13, 3), "b");
  ASSERT_TRUE(driver.add(first).ok());
  ASSERT_TRUE(driver.add(second).ok());
  ASSERT_TRUE(driver.add(make_request(3, 6, 3)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, SizeIs(3));
  for (const ScheduledSequence& run : driver.plan.scheduled) EXPECT_EQ(run.num_computed_tokens, 0);
  ASSERT_TRUE(driver.add(salted(make_request(4, 13, 3), "b")).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.run_of(4)->num_computed_tokens, 12);
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[1].tokens, driver.alone(first, 3));
  EXPECT_EQ(driver.answers[2].tokens, driver.alone(second, 3));
}

TEST(KnownFailures, PromptLogprobsAreNeverReadFromTheCacheButLeaveBlocksInIt) {
  PagedDriver driver(caching_config());
  ASSERT_TRUE(driver.add(make_request(1, 13, 2)).ok());
  ASSERT_TRUE(driver.run_to_end());
  SamplingParams params;
  params.prompt_logprobs = 0;
  params.max_tokens = 2;
  ASSERT_TRUE(driver.add(make_request(2, 13, params)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.run_of(2)->num_computed_tokens, 0);
  ASSERT_THAT(driver.answers[2].prompt_logprobs, SizeIs(12));
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(driver.answers[2].prompt_logprobs[static_cast<size_t>(i)].chosen.id, 1001 + i);
  }
  ASSERT_TRUE(driver.run_to_end());
}

TEST(KnownFailures, ARequestLongerThanThePoolIsRefusedAndTheOthersGoOn) {
  SchedulerConfig config = caching_config();
  config.num_blocks = 5;
  PagedDriver driver(config);
  const SequenceRequest first = make_request(1, 8, 9);
  ASSERT_TRUE(driver.add(first).ok());
  ASSERT_TRUE(driver.step());
  const Status refused = driver.add(make_request(2, 30, 4));
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("but the whole cache has 5"));
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[1].tokens, driver.alone(first, 9));
}

TEST(KnownFailures, ResettingTheCacheWhileRequestsRunChangesNoAnswer) {
  PagedDriver driver(caching_config());
  const SequenceRequest first = make_request(1, 13, 20);
  ASSERT_TRUE(driver.add(first).ok());
  ASSERT_TRUE(driver.step());
  driver.scheduler.reset_prefix_cache();
  const SequenceRequest second = make_request(2, 13, 5);
  ASSERT_TRUE(driver.add(second).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_EQ(driver.run_of(2)->num_computed_tokens, 0);
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.answers[1].tokens, driver.alone(first, 20));
  EXPECT_EQ(driver.answers[2].tokens, driver.alone(second, 5));
}

// ---- forks ----

std::vector<SequenceRequest> samples(int count, int num_prompt_tokens, int max_tokens, SequenceId first = 1) {
  std::vector<SequenceRequest> requests;
  for (int i = 0; i < count; ++i) {
    requests.push_back(make_request(first + static_cast<SequenceId>(i), num_prompt_tokens, max_tokens));
    if (i > 0) requests.back().fork_of = first;
  }
  return requests;
}

void expect_answers(PagedDriver& driver, const std::vector<SequenceRequest>& requests, int count) {
  for (const SequenceRequest& request : requests) {
    EXPECT_EQ(driver.answers[request.id].tokens, driver.alone(request, count)) << "sequence " << request.id;
  }
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
}

TEST(Forks, ShareThePromptAndSplitWhereTheyWrite) {
  SchedulerConfig config = caching_config();
  config.prefix_caching = false;  // forks share by themselves
  PagedDriver driver(config);
  const std::vector<SequenceRequest> requests = samples(3, 10, 4);
  for (const SequenceRequest& request : requests) ASSERT_TRUE(driver.add(request).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_THAT(driver.plan.scheduled, SizeIs(1)) << "the source computes the prompt alone";
  ASSERT_TRUE(driver.step());
  ASSERT_THAT(driver.plan.scheduled, SizeIs(3));
  for (const SequenceId fork : {2u, 3u}) {
    EXPECT_EQ(driver.run_of(fork)->num_computed_tokens, 9);
    EXPECT_EQ(driver.run_of(fork)->num_new_tokens, 1);
    EXPECT_EQ(driver.table_of(fork)[1], driver.table_of(1)[1]);
    EXPECT_NE(driver.table_of(fork)[2], driver.table_of(1)[2]);
  }
  EXPECT_THAT(driver.plan.copies, Not(IsEmpty()));
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 2 + 3);
  ASSERT_TRUE(driver.run_to_end());
  expect_answers(driver, requests, 4);
}

TEST(Forks, OfASourceThatIsCancelledBeforeItComputedAnythingComputeThemselves) {
  PagedDriver driver(caching_config());
  const std::vector<SequenceRequest> requests = samples(3, 10, 4);
  for (const SequenceRequest& request : requests) ASSERT_TRUE(driver.add(request).ok());
  EXPECT_TRUE(driver.scheduler.cancel(1));
  driver.scheduler.check_invariants();
  ASSERT_TRUE(driver.run_to_end());
  expect_answers(driver, {requests[1], requests[2]}, 4);
  EXPECT_THAT(driver.answers[1].tokens, IsEmpty());
}

TEST(Forks, OfASourceThatIsCancelledInTheMiddleOfItsPromptComputeThemselves) {
  SchedulerConfig config = caching_config();
  config.max_num_batched_tokens = 6;
  PagedDriver driver(config);
  const std::vector<SequenceRequest> requests = samples(3, 15, 4);
  for (const SequenceRequest& request : requests) ASSERT_TRUE(driver.add(request).ok());
  ASSERT_TRUE(driver.plan_step());
  EXPECT_TRUE(driver.scheduler.cancel(1));
  driver.commit_step();
  ASSERT_TRUE(driver.run_to_end());
  expect_answers(driver, {requests[1], requests[2]}, 4);
}

TEST(Forks, OfASourceThatHasFinishedAreAnsweredAllTheSame) {
  for (const bool caching : {false, true}) {
    SchedulerConfig config = caching_config();
    config.prefix_caching = caching;
    PagedDriver driver(config);
    const std::vector<SequenceRequest> requests = samples(3, 10, 1);
    for (const SequenceRequest& request : requests) ASSERT_TRUE(driver.add(request).ok());
    ASSERT_TRUE(driver.run_to_end());
    expect_answers(driver, requests, 1);
  }
}

TEST(Forks, OfASourceThatIsPreemptedAreAnsweredAllTheSame) {
  SchedulerConfig config = caching_config();
  config.num_blocks = 13;
  config.max_num_batched_tokens = 2;  // the source is at its prompt while the one before it grows
  config.prefix_caching = false;
  PagedDriver driver(config);
  const SequenceRequest before = make_request(9, 5, 40);
  ASSERT_TRUE(driver.add(before).ok());
  const std::vector<SequenceRequest> requests = samples(3, 30, 5);
  for (const SequenceRequest& request : requests) ASSERT_TRUE(driver.add(request).ok());
  bool source_preempted = false;
  while (driver.step()) {
    for (const SequenceId id : driver.scheduler.last_preempted()) source_preempted |= id == 1;
  }
  EXPECT_TRUE(source_preempted);
  EXPECT_EQ(driver.answers[9].tokens, driver.alone(before, 40));
  expect_answers(driver, requests, 5);
}

TEST(Forks, ACancelledForkLeavesTheOthersAlone) {
  PagedDriver driver(caching_config());
  const std::vector<SequenceRequest> requests = samples(3, 10, 6);
  for (const SequenceRequest& request : requests) ASSERT_TRUE(driver.add(request).ok());
  EXPECT_TRUE(driver.scheduler.cancel(2));
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.run_to_end());
  expect_answers(driver, {requests[0], requests[2]}, 6);
}

// ---- beams ----

SequenceRequest beams(SequenceId id, int num_prompt_tokens, int max_tokens, int width) {
  SamplingParams params;
  params.use_beam_search = true;
  params.beam_width = width;
  params.n = width;
  params.max_tokens = max_tokens;
  return make_request(id, num_prompt_tokens, params);
}

std::vector<std::vector<TokenId>> beam_answers(PagedDriver& driver, SequenceId first, int width) {
  std::vector<std::vector<TokenId>> answers;
  for (int i = 0; i < width; ++i) answers.push_back(driver.answers[first + static_cast<SequenceId>(i)].tokens);
  return answers;
}

TEST(Beams, ArePreemptedTogetherAndAnswerAsInAnEmptyPool) {
  PagedDriver roomy(caching_config(), 30);
  ASSERT_TRUE(roomy.add(beams(10, 9, 20, 3)).ok());
  ASSERT_TRUE(roomy.run_to_end());
  EXPECT_EQ(roomy.scheduler.stats().preemptions, 0u);

  SchedulerConfig config = caching_config();
  config.num_blocks = 21;
  config.num_swap_blocks = 24;
  config.preemption_mode = sched::PreemptionMode::kSwap;
  PagedDriver tight(config, 30);
  const SequenceRequest before = make_request(1, 5, 75);
  ASSERT_TRUE(tight.add(before).ok());
  for (int i = 0; i < 45; ++i) ASSERT_TRUE(tight.step());
  ASSERT_TRUE(tight.add(beams(10, 9, 20, 3)).ok());
  std::vector<SequenceId> preempted;
  while (tight.step()) {
    if (preempted.empty()) preempted = tight.scheduler.last_preempted();
  }
  EXPECT_THAT(preempted, testing::UnorderedElementsAre(10, 11, 12));
  EXPECT_EQ(tight.answers[1].tokens, tight.alone(before, 75));
  EXPECT_EQ(beam_answers(tight, 10, 3), beam_answers(roomy, 10, 3));
  EXPECT_EQ(tight.scheduler.stats().blocks_used, 0);
}

TEST(Beams, HoldTheirPromptOnce) {
  PagedDriver driver(caching_config(), 30);
  ASSERT_TRUE(driver.add(beams(1, 29, 8, 4)).ok());
  ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.plan_step());
  EXPECT_THAT(driver.plan.scheduled, SizeIs(4));
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 7 + 4);
  driver.commit_step();
  ASSERT_TRUE(driver.run_to_end());
}

TEST(Beams, ACancelOrAnErrorOfOneEndsTheSearch) {
  for (const bool cancels : {false, true}) {
    PagedDriver driver(caching_config(), 30);
    ASSERT_TRUE(driver.add(beams(1, 9, 8, 3)).ok());
    const SequenceRequest other = make_request(9, 9, 8);
    ASSERT_TRUE(driver.add(other).ok());
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(driver.step());
    if (cancels) {
      EXPECT_TRUE(driver.scheduler.cancel(2));
    } else {
      driver.failing = {2};
      ASSERT_TRUE(driver.step());
      for (const SequenceId id : {1u, 2u, 3u}) EXPECT_EQ(driver.answers[id].last.finish, FinishReason::kError);
    }
    ASSERT_TRUE(driver.run_to_end());
    EXPECT_EQ(driver.answers[9].tokens, driver.alone(other, 8));
    EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
  }
}

// ---- plans ahead of results ----

struct PlansInFlight : testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Depth, PlansInFlight, testing::Values(1, 2, 3, 5));

TEST_P(PlansInFlight, AStopOrAnErrorDropsWhatWasPlannedBeyond) {
  SchedulerConfig config = caching_config();
  config.max_plans_in_flight = GetParam();
  PagedDriver driver(config);
  std::vector<SequenceRequest> requests;
  for (SequenceId id = 1; id <= 6; ++id) {
    SamplingParams params;
    params.max_tokens = 12;
    SequenceRequest request = make_request(id, 5 + static_cast<int>(id), params);
    if (id % 2 == 0) {
      params.stop_token_ids = {driver.alone(request, static_cast<int>(id))[id - 1]};
      request = make_request(id, 5 + static_cast<int>(id), params);
    }
    requests.push_back(request);
    ASSERT_TRUE(driver.add(request).ok());
  }
  for (int i = 0; i < 3; ++i) {
    while (driver.plan_step()) {
    }
    driver.failing = {5};
    driver.commit_step();
  }
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.most_in_flight, static_cast<size_t>(GetParam()));
  for (const SequenceRequest& request : requests) {
    const auto& answer = driver.answers[request.id];
    if (request.id == 5) {
      EXPECT_EQ(answer.last.finish, FinishReason::kError);
      continue;
    }
    const bool stops = request.id % 2 == 0;
    EXPECT_EQ(answer.last.finish, stops ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_EQ(answer.tokens, driver.alone(request, stops ? static_cast<int>(request.id) : 12));
  }
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
}

TEST_P(PlansInFlight, NothingIsPlannedBeyondMaxTokens) {
  SchedulerConfig config = caching_config();
  config.max_plans_in_flight = GetParam();
  PagedDriver driver(config);
  ASSERT_TRUE(driver.add(make_request(1, 5, 4)).ok());
  ASSERT_TRUE(driver.run_to_end());
  EXPECT_EQ(driver.scheduler.stats().scheduled_tokens, 5u + 3u);
}

TEST_P(PlansInFlight, ACancelFreesBlocksWhenTheLastPlanThatUsesThemIsCommitted) {
  SchedulerConfig config = caching_config();
  config.max_plans_in_flight = GetParam();
  PagedDriver driver(config);
  ASSERT_TRUE(driver.add(make_request(1, 5, 40)).ok());
  while (driver.plan_step()) {
  }
  EXPECT_TRUE(driver.scheduler.cancel(1));
  while (driver.num_in_flight() > 0) {
    EXPECT_GT(driver.scheduler.stats().blocks_used, 0);
    driver.commit_step();
  }
  EXPECT_EQ(driver.scheduler.stats().blocks_used, 0);
  EXPECT_FALSE(driver.scheduler.has_work());
}

// ---- who goes first ----

// One at a time, so that the order of service is the order of the answers' ends.
TEST(Beams, ALongListOfStopIdsMakesNoPlanLarge) {
  SchedulerConfig config = caching_config();
  config.max_num_seqs = 128;
  config.num_blocks = 4096;
  PagedDriver driver(config);
  SamplingParams params{.max_tokens = 4, .use_beam_search = true, .beam_width = 128};
  std::vector<TokenId> ids;
  for (TokenId id = 1000; id < 141'000; ++id) ids.push_back(id);
  params.stop_token_ids = ids;
  ASSERT_TRUE(driver.add(make_request(1, 8, params)).ok());
  while (driver.step()) {
    for (const ScheduledSequence& run : driver.plan.scheduled) EXPECT_LE(run.num_candidates, 2 * 128);
    for (const NewSequence& added : driver.plan.added) EXPECT_TRUE(added.eos_ids.empty()) << "the list is params' own";
  }
  EXPECT_EQ(driver.answers[1].last.finish, FinishReason::kLength);
}

SchedulerConfig one_at_a_time() {
  SchedulerConfig config = caching_config();
  config.max_num_seqs = 1;
  config.prefix_caching = false;
  return config;
}

TEST(Priorities, ALowerLevelWaitsForItsTokensOfLaterWorkAndNoMore) {
  SchedulerConfig config = one_at_a_time();
  config.tokens_per_priority_level = 100;
  PagedDriver driver(config);
  ASSERT_TRUE(driver.add(make_request(1, 4, 4)).ok());
  SequenceRequest low = make_request(2, 10, 10);
  low.priority = 1;
  ASSERT_TRUE(driver.add(low).ok());
  int64_t overtaking = 0;  // tokens of work that came later and went first
  SequenceId next = 3;
  ASSERT_TRUE(driver.add(make_request(next++, 10, 10)).ok());
  size_t known = 0;
  while (driver.run_of(2) == nullptr) {
    ASSERT_TRUE(driver.step());
    size_t finished = 0;
    for (const auto& [id, answer] : driver.answers) finished += answer.finished() ? 1 : 0;
    if (finished == known) continue;
    known = finished;
    if (known > 1) overtaking += 20;
    ASSERT_TRUE(driver.add(make_request(next++, 10, 10)).ok());
    ASSERT_LT(next, 100u) << "starved";
  }
  EXPECT_GE(overtaking, 80);
  EXPECT_LE(overtaking, 100 + 20) << "at most its level's tokens and the request under way";
}

TEST(Priorities, WithoutAgeingTokensTheyAreIgnored) {
  PagedDriver driver(one_at_a_time());
  SequenceRequest low = make_request(1, 4, 2);
  low.priority = 9;
  ASSERT_TRUE(driver.add(low).ok());
  ASSERT_TRUE(driver.add(make_request(2, 4, 2)).ok());
  ASSERT_TRUE(driver.step());
  EXPECT_NE(driver.run_of(1), nullptr);
}

SequenceRequest of_tenant(int32_t tenant, double weight, SequenceRequest request) {
  request.tenant = tenant;
  request.weight = weight;
  return request;
}

TEST(Tenants, AFloodOfOneDelaysASingleRequestOfAnotherByAboutOneRequest) {
  PagedDriver driver(one_at_a_time());
  for (SequenceId id = 1; id <= 60; ++id) ASSERT_TRUE(driver.add(of_tenant(1, 1, make_request(id, 10, 10))).ok());
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(driver.step());
  ASSERT_TRUE(driver.add(of_tenant(2, 1, make_request(100, 10, 10))).ok());
  int steps = 0;
  while (!driver.answers[100].finished()) {
    ASSERT_TRUE(driver.step());
    ++steps;
  }
  EXPECT_LE(steps, 2 * 10 + 10) << "the one under way, at most one more, and its own";
}

TEST(Tenants, AFloodOfOneTakesNoBlocksFromTheOtherForLong) {
  SchedulerConfig config = caching_config();
  config.prefix_caching = false;
  config.num_blocks = 12;
  PagedDriver driver(config);
  for (SequenceId id = 1; id <= 60; ++id) ASSERT_TRUE(driver.add(of_tenant(1, 1, make_request(id, 10, 10))).ok());
  for (int i = 0; i < 25; ++i) ASSERT_TRUE(driver.step());
  const SequenceRequest single = of_tenant(2, 1, make_request(100, 10, 10));
  ASSERT_TRUE(driver.add(single).ok());
  int steps = 0;
  while (!driver.answers[100].finished()) {
    ASSERT_TRUE(driver.step());
    ++steps;
  }
  EXPECT_LE(steps, 30);
  ASSERT_TRUE(driver.run_to_end());
  for (SequenceId id = 1; id <= 60; ++id) EXPECT_THAT(driver.answers[id].tokens, SizeIs(10));
}

TEST(Tenants, WeightsOfOneAndThreeShareTokensOneToThree) {
  SchedulerConfig config = caching_config();
  config.prefix_caching = false;
  config.max_num_seqs = 3;
  PagedDriver driver(config);
  SequenceId next = 1;
  std::map<SequenceId, int> tenant_of;
  std::map<int, int> open;
  std::map<int, int64_t> tokens;
  const auto top_up = [&] {
    for (const int tenant : {1, 3}) {
      for (; open[tenant] < 12; ++open[tenant]) {
        const int prompt = tenant == 1 ? 3 + static_cast<int>(next % 17) : 3 + static_cast<int>(next % 7);
        ASSERT_TRUE(
            driver.add(of_tenant(tenant, tenant, make_request(next, prompt, 2 + static_cast<int>(next % 9)))).ok());
        tenant_of[next++] = tenant;
      }
    }
  };
  for (int i = 0; i < 4000; ++i) {
    top_up();
    ASSERT_TRUE(driver.step());
    for (const ScheduledSequence& run : driver.plan.scheduled) tokens[tenant_of.at(run.id)] += run.num_new_tokens;
    std::erase_if(driver.answers, [&](const auto& entry) {
      if (!entry.second.finished()) return false;
      --open[tenant_of.at(entry.first)];
      return true;
    });
  }
  const double ratio = static_cast<double>(tokens[3]) / static_cast<double>(tokens[1]);
  EXPECT_NEAR(ratio, 3.0, 0.15);
}

}  // namespace
}  // namespace quire::sched
