// Random operations on a Scheduler, beside a naive account of what every plan and every commit must look like.
#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sched/scheduler.h"

namespace quire::sched {
namespace {

constexpr TokenId kEos = 2;
constexpr TokenId kStopId = 3;

// What the outside knows of a sequence: the request, the tokens so far, and what the plans have said about it.
struct Shadow {
  SequenceRequest request;
  uint64_t arrival = 0;
  std::vector<TokenId> known;
  int computed = 0;  // by the plans
  int in_flight = 0;
  bool introduced = false;
  bool retired = false;
  bool ended = false;
  bool cancelled = false;
  int num_prompt_logprobs = 0;
  std::vector<BlockId> blocks;  // as of its last run
};

class World {
 public:
  World(unsigned seed, int lookahead) : random_(seed), lookahead_(lookahead) {
    config_.max_num_seqs = between(1, 8);
    config_.max_num_batched_tokens = between(1, 40);
    config_.block_size = between(1, 5);
    config_.num_blocks = between(2, 24);
    config_.max_model_len = between(2, 90);
    scheduler_ = std::make_unique<Scheduler>(config_);
  }

  void operation() {
    const int choice = between(0, 9);
    if (choice <= 1 && num_live() < 20) {
      add();
    } else if (choice == 2 && between(0, 2) == 0) {
      cancel();
    } else if (choice <= 6 || plans_.empty()) {
      if (static_cast<int>(plans_.size()) < lookahead_) schedule();
    } else {
      commit();
    }
    scheduler_->check_invariants();
    check_stats();
  }

  // Without new requests everything ends, within a bounded number of steps.
  void drain() {
    int steps = 0;
    while (scheduler_->has_work()) {
      if (plans_.empty()) {
        ASSERT_TRUE(schedule()) << "work is left, but nothing is scheduled";
      }
      commit();
      scheduler_->check_invariants();
      ASSERT_LT(++steps, 100000) << "no end";
    }
    EXPECT_EQ(num_live(), 0);
    EXPECT_EQ(scheduler_->stats().blocks_used, 0);
  }

  SchedulerStats stats() const { return scheduler_->stats(); }
  int num_finished() const { return num_finished_; }

 private:
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  int num_live() const {
    return static_cast<int>(
        std::count_if(shadows_.begin(), shadows_.end(), [](const auto& s) { return !s.second.ended; }));
  }

  void add() {
    SamplingParams params;
    params.max_tokens = between(0, 30);
    if (between(0, 5) == 0) params.max_tokens = std::nullopt;
    params.min_tokens = between(0, 3) == 0 ? between(0, params.max_tokens.value_or(3)) : 0;
    if (between(0, 2) == 0) params.stop_token_ids = {kStopId};
    if (between(0, 3) == 0) params.prompt_logprobs = 0;
    SequenceRequest request;
    request.id = next_id_++;
    request.seed = request.id;
    request.prompt.resize(static_cast<size_t>(between(0, 40)));
    for (TokenId& token : request.prompt) token = between(10, 500);
    if (between(0, 1) == 0) request.eos_ids = {kEos};
    request.params = std::make_shared<const SamplingParams>(params);

    const bool accepted = scheduler_->add(request).ok();
    ASSERT_EQ(accepted, fits(request)) << "prompt " << request.prompt.size();
    if (!accepted) return;
    Shadow& shadow = shadows_[request.id];
    shadow.arrival = next_arrival_++;
    shadow.known = request.prompt;
    shadow.request = std::move(request);
  }

  int max_total(const SequenceRequest& request) const {
    const int prompt = static_cast<int>(request.prompt.size());
    const int pool = config_.num_blocks * config_.block_size;
    if (!request.params->max_tokens) return std::min(config_.max_model_len, pool + 1);
    return std::min(prompt + *request.params->max_tokens, config_.max_model_len);
  }

  bool fits(const SequenceRequest& request) const {
    const int prompt = static_cast<int>(request.prompt.size());
    const bool samples = request.params->max_tokens != 0;
    const int pool = config_.num_blocks * config_.block_size;
    if (prompt == 0 || prompt > pool) return false;
    if (!samples) return prompt <= config_.max_model_len;
    return prompt < config_.max_model_len && max_total(request) - 1 <= pool;
  }

  void cancel() {
    if (shadows_.empty()) return;
    auto place = shadows_.begin();
    std::advance(place, between(0, static_cast<int>(shadows_.size()) - 1));
    Shadow& shadow = place->second;
    ASSERT_EQ(scheduler_->cancel(place->first), !shadow.ended);
    shadow.cancelled = shadow.cancelled || !shadow.ended;
    shadow.ended = true;
  }

  bool schedule() {
    StepPlan plan = std::move(spare_);
    const uint64_t preemptions_before = scheduler_->stats().preemptions;
    if (!scheduler_->schedule(plan)) {
      EXPECT_TRUE(!plans_.empty() || num_live() == 0);
      spare_ = std::move(plan);
      return false;
    }
    check_plan(plan, scheduler_->stats().preemptions > preemptions_before);
    plans_.push_back(std::move(plan));
    return true;
  }

  void check_plan(const StepPlan& plan, bool preempted) {
    ASSERT_EQ(plan.step, next_step_++);
    for (SequenceId id : plan.retired) {
      Shadow& shadow = shadows_.at(id);
      ASSERT_TRUE(shadow.ended && shadow.introduced && !shadow.retired) << id;
      shadow.retired = true;
    }
    for (const NewSequence& added : plan.added) {
      Shadow& shadow = shadows_.at(added.id);
      ASSERT_FALSE(shadow.introduced || shadow.ended) << added.id;
      ASSERT_EQ(added.prompt, shadow.request.prompt);
      ASSERT_EQ(added.seed, shadow.request.seed);
      shadow.introduced = true;
    }
    ASSERT_FALSE(plan.scheduled.empty());
    ASSERT_LE(static_cast<int>(plan.scheduled.size()), config_.max_num_seqs);
    ASSERT_TRUE(plan.added.empty() || !preempted) << "admitted in a step that preempted";

    int tokens = 0;
    uint64_t last_arrival = 0;
    for (const ScheduledSequence& run : plan.scheduled) {
      Shadow& shadow = shadows_.at(run.id);
      ASSERT_TRUE(shadow.introduced && !shadow.ended && !shadow.retired) << run.id;
      ASSERT_TRUE(&run == plan.scheduled.data() || shadow.arrival > last_arrival) << "order";
      last_arrival = shadow.arrival;
      // A preempted sequence begins anew; nobody else goes back.
      if (run.num_computed_tokens != shadow.computed) {
        ASSERT_EQ(run.num_computed_tokens, 0);
        ASSERT_EQ(shadow.in_flight, 0);
      }
      ASSERT_GE(run.num_new_tokens, 1);
      shadow.computed = run.num_computed_tokens + run.num_new_tokens;
      const auto known = static_cast<int>(shadow.known.size());
      ASSERT_LE(shadow.computed, known);
      ASSERT_EQ(run.samples, shadow.computed == known && shadow.request.params->max_tokens != 0);
      ASSERT_EQ(static_cast<int>(run.block_table.size()),
                (shadow.computed + config_.block_size - 1) / config_.block_size);
      if (run.num_computed_tokens > 0) {
        ASSERT_TRUE(std::equal(shadow.blocks.begin(), shadow.blocks.end(), run.block_table.begin()))
            << "computed keys and values have moved";
      }
      shadow.blocks = run.block_table;
      ++shadow.in_flight;
      tokens += run.num_new_tokens;
    }
    ASSERT_EQ(tokens, plan.num_tokens);
    ASSERT_LE(tokens, config_.max_num_batched_tokens);
    check_nobody_shares_blocks(plan);
    check_nobody_was_overtaken(plan);
  }

  // Neither within this plan nor with sequences of earlier plans that are still in flight.
  void check_nobody_shares_blocks(const StepPlan& plan) {
    std::map<BlockId, SequenceId> holder;
    const auto claim = [&](const ScheduledSequence& run) {
      for (BlockId block : run.block_table) {
        ASSERT_TRUE(block >= 0 && block < config_.num_blocks);
        ASSERT_EQ(holder.try_emplace(block, run.id).first->second, run.id) << "block " << block;
      }
    };
    for (const ScheduledSequence& run : plan.scheduled) claim(run);
    for (const StepPlan& earlier : plans_) {
      for (const ScheduledSequence& run : earlier.scheduled) claim(run);
    }
  }

  // Whoever never ran came after everybody who has run: first come, first served.
  void check_nobody_was_overtaken(const StepPlan& plan) {
    uint64_t last_started = 0;
    for (const ScheduledSequence& run : plan.scheduled) {
      last_started = std::max(last_started, shadows_.at(run.id).arrival);
    }
    for (const auto& [id, shadow] : shadows_) {
      if (shadow.ended || shadow.introduced) continue;
      ASSERT_GT(shadow.arrival, last_started) << id;
    }
  }

  void commit() {
    if (plans_.empty()) return;
    StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    StepResult result;
    result.step = plan.step;
    std::map<SequenceId, CommitEvent> expected;
    for (const ScheduledSequence& run : plan.scheduled) {
      result.sequences.push_back(fake_result(run));
      expect(run, result.sequences.back(), expected);
    }
    std::vector<CommitEvent> events = scheduler_->commit(plan, std::move(result));
    ASSERT_EQ(events.size(), expected.size());
    for (const CommitEvent& event : events) {
      ASSERT_TRUE(expected.count(event.id));
      const TokenEvent& wanted = expected.at(event.id).event;
      ASSERT_EQ(event.event.tokens, wanted.tokens);
      ASSERT_EQ(event.event.finish, wanted.finish);
      ASSERT_EQ(event.event.stop_token, wanted.stop_token);
      ASSERT_EQ(event.event.stopped_by_eos, wanted.stopped_by_eos);
      Shadow& shadow = shadows_.at(event.id);
      for (const PositionLogprobs& one : event.event.prompt_logprobs) {
        const auto position = static_cast<size_t>(++shadow.num_prompt_logprobs);
        ASSERT_EQ(one.chosen.id, shadow.request.prompt.at(position));
      }
      if (shadow.request.params->prompt_logprobs && event.event.error.ok()) {
        ASSERT_EQ(shadow.num_prompt_logprobs, static_cast<int>(shadow.request.prompt.size()) - 1);
      }
      if (event.event.finish != FinishReason::kNone) ++num_finished_;
    }
    forget_retired();
    spare_ = std::move(plan);
  }

  SequenceResult fake_result(const ScheduledSequence& run) {
    const Shadow& shadow = shadows_.at(run.id);
    SequenceResult result;
    result.id = run.id;
    if (between(0, 300) == 0) {
      result.error = internal_error("made up");
      return result;
    }
    if (run.samples) {
      const int kind = between(0, 40);
      result.tokens.push_back(kind == 0 ? kEos : kind == 1 ? kStopId : between(10, 500));
    }
    if (shadow.request.params->prompt_logprobs) {
      const auto prompt = static_cast<int>(shadow.request.prompt.size());
      const int end = std::min(run.num_computed_tokens + run.num_new_tokens, prompt - 1);
      for (int row = run.num_computed_tokens; row < end; ++row) {
        result.prompt_logprobs.emplace_back().chosen.id = shadow.request.prompt[static_cast<size_t>(row) + 1];
      }
    }
    return result;
  }

  // What commit must say about this run, by the rules of the header spelled out once more.
  void expect(const ScheduledSequence& run, const SequenceResult& result, std::map<SequenceId, CommitEvent>& expected) {
    Shadow& shadow = shadows_.at(run.id);
    --shadow.in_flight;
    if (shadow.ended) return;
    const SamplingParams& params = *shadow.request.params;
    TokenEvent event;
    if (!result.error.ok()) {
      event.finish = FinishReason::kError;
    } else if (run.samples) {
      const TokenId token = result.tokens[0];
      shadow.known.push_back(token);
      event.tokens = {token};
      const auto total = static_cast<int>(shadow.known.size());
      const int answered = total - static_cast<int>(shadow.request.prompt.size());
      const bool eos = token == kEos && !shadow.request.eos_ids.empty();
      const bool stop = token == kStopId && !params.stop_token_ids.empty();
      if ((eos || stop) && answered >= params.min_tokens) {
        event.finish = FinishReason::kStop;
        event.stop_token = token;
        event.stopped_by_eos = eos;
      } else if (total == max_total(shadow.request)) {
        event.finish = FinishReason::kLength;
      }
    } else if (params.max_tokens == 0 &&
               run.num_computed_tokens + run.num_new_tokens == static_cast<int>(shadow.request.prompt.size())) {
      event.finish = FinishReason::kLength;
    } else {
      return;
    }
    shadow.ended = event.finish != FinishReason::kNone;
    expected[run.id] = {run.id, event};
  }

  void forget_retired() {
    std::erase_if(shadows_, [](const auto& entry) {
      const Shadow& shadow = entry.second;
      return shadow.ended && shadow.in_flight == 0 && (shadow.retired || !shadow.introduced);
    });
  }

  void check_stats() {
    const SchedulerStats stats = scheduler_->stats();
    ASSERT_EQ(stats.running + stats.waiting, num_live());
    ASSERT_EQ(stats.blocks_total, config_.num_blocks);
  }

  std::mt19937 random_;
  int lookahead_;
  SchedulerConfig config_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<SequenceId, Shadow> shadows_;
  std::deque<StepPlan> plans_;  // not yet committed
  StepPlan spare_;
  SequenceId next_id_ = 1;
  uint64_t next_arrival_ = 1;
  uint64_t next_step_ = 0;
  int num_finished_ = 0;
};

class SchedulerRandom : public testing::TestWithParam<int> {};

TEST_P(SchedulerRandom, OperationsKeepEveryRuleAndEverythingEnds) {
  const int lookahead = GetParam();
  int operations = 0;
  int finished = 0;
  uint64_t preemptions = 0;
  for (unsigned world_number = 0; world_number < 300; ++world_number) {
    const unsigned seed = 9000 + world_number;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", lookahead " << lookahead);
    World world(seed, lookahead);
    for (int i = 0; i < 1000; ++i, ++operations) {
      world.operation();
      if (HasFatalFailure()) return;
    }
    world.drain();
    if (HasFailure()) return;
    finished += world.num_finished();
    preemptions += world.stats().preemptions;
  }
  // The worlds are such that the rare paths are walked too.
  EXPECT_GT(finished, 1000);
  EXPECT_GT(preemptions, 100u);
  std::printf("%d operations, %d sequences finished, %llu preemptions\n", operations, finished,
              static_cast<unsigned long long>(preemptions));
}

INSTANTIATE_TEST_SUITE_P(PlansInFlight, SchedulerRandom, testing::Values(1, 2, 3));

}  // namespace
}  // namespace quire::sched
