// What a step of a beam search costs, however long its answers and its list of stop ids have become.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "sched/beam_search.h"
#include "sched/scheduler.h"
#include "tests/suites/allocations.h"

namespace quire::sched {
namespace {

constexpr int32_t kWidth = 8;

// The beams change places at every step, and one of them ends.
std::vector<TokenLogprob> offered(int32_t step, size_t beam, int32_t count) {
  std::vector<TokenLogprob> candidates;
  for (int32_t place = 0; place < count; ++place) {
    const bool leads = (static_cast<size_t>(step) + beam) % 3 == 0;
    candidates.push_back({100 + place + static_cast<TokenId>(beam) * 50,
                          (leads ? -0.1f : -0.2f) - 0.01f * static_cast<float>(place), place + 1});
  }
  return candidates;
}

TEST(BeamCosts, AStepOfTheSearchAllocatesTheSameAfterTwoThousandTokensAsAfterTwoHundred) {
  BeamSearch search({.num_beams = kWidth, .max_tokens = 3000, .logprobs = 1});
  std::vector<BeamMoveChoice> moves;
  const auto hundred_steps_from = [&](int32_t first) {
    int64_t bytes = 0;
    for (int32_t step = first; step < first + 100; ++step) {
      std::vector<std::vector<TokenLogprob>> candidates;
      for (int32_t beam = 0; beam < search.num_open(); ++beam) {
        candidates.push_back(offered(step, static_cast<size_t>(beam), search.num_candidates()));
      }
      bytes += allocations_of([&] { EXPECT_TRUE(search.advance(candidates, moves)); }).bytes;
    }
    return bytes;
  };
  int32_t step = 0;
  for (; step < 200; step += 100) hundred_steps_from(step);
  const int64_t early = hundred_steps_from(step);
  for (step += 100; step < 1900; step += 100) hundred_steps_from(step);
  int64_t late = hundred_steps_from(step);
  // A list that doubles does so in some hundred or other.
  late = std::min(late, hundred_steps_from(step + 100));
  EXPECT_LE(late, 2 * early);
}

class BeamScheduling {
 public:
  explicit BeamScheduling(SamplingParams params) : scheduler_(config()) {
    SequenceRequest request;
    request.id = 1;
    request.prompt = {5, 6, 7};
    request.params = std::make_shared<const SamplingParams>(std::move(params));
    request.eos_ids = {2};
    EXPECT_TRUE(scheduler_.add(std::move(request)).ok());
  }

  // Of the scheduler alone.
  Allocations steps(int count) {
    Allocations sum;
    for (int i = 0; i < count; ++i) {
      Allocations one = allocations_of([&] { EXPECT_TRUE(scheduler_.schedule(plan_)); });
      StepResult result;
      result.step = plan_.step;
      for (size_t beam = 0; beam < plan_.scheduled.size(); ++beam) {
        const ScheduledSequence& run = plan_.scheduled[beam];
        SequenceResult& of = result.sequences.emplace_back();
        of.id = run.id;
        if (run.samples) of.candidates = offered(step_, beam, run.num_candidates);
      }
      ++step_;
      const Allocations other = allocations_of([&] { scheduler_.commit(plan_, std::move(result)); });
      sum.count += one.count + other.count;
      sum.bytes += one.bytes + other.bytes;
      most_bytes_ = std::max(most_bytes_, one.bytes + other.bytes);
    }
    return sum;
  }
  int64_t most_bytes_of_a_step() const { return most_bytes_; }

 private:
  static SchedulerConfig config() {
    SchedulerConfig config;
    config.max_model_len = 4096;
    config.block_size = 64;
    config.num_blocks = 1024;
    return config;
  }

  Scheduler scheduler_;
  StepPlan plan_;
  int32_t step_ = 0;
  int64_t most_bytes_ = 0;
};

TEST(BeamCosts, AStepOfTheSchedulerCopiesNoAnswers) {
  BeamScheduling beams({.max_tokens = 3000, .use_beam_search = true, .beam_width = kWidth});
  beams.steps(200);
  const int64_t early = beams.steps(256).bytes;
  beams.steps(1500);
  const int64_t late = std::min(beams.steps(256).bytes, beams.steps(256).bytes);
  // 2,000 tokens of each beam would be 64 KB a step; what grows is the tables of blocks alone.
  const int64_t tables = 256 * kWidth * 2 * (2600 / 64) * static_cast<int64_t>(sizeof(BlockId));
  EXPECT_LE(late, 2 * early + tables);
}

TEST(BeamCosts, ALongListOfStopIdsIsNeitherCopiedNorSortedForABeam) {
  std::vector<TokenId> ids;
  for (TokenId id = 140'999; id >= 1000; --id) ids.push_back(id);
  BeamScheduling beams(
      {.max_tokens = 64, .min_tokens = 32, .stop_token_ids = ids, .use_beam_search = true, .beam_width = kWidth});
  beams.steps(8);
  EXPECT_LT(beams.most_bytes_of_a_step(), 100'000) << "the list has 560,000 bytes";
}

}  // namespace
}  // namespace quire::sched
