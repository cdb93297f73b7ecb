// Random requests, cancels and steps on a Scheduler over a PagedMemory, beside a naive account of what each request
// must get when it runs alone. Used by the tests (10^6 operations) and by scripts/soak_scheduler.sh (as many as you
// like).
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "tests/sched/fake_disk.h"
#include "tests/sched/paged_memory.h"

namespace quire::sched::testing_support {

// Guesses that are right more or less often, of any length: what a proposer says must change no answer.
class RandomProposer final : public DraftProposer {
 public:
  RandomProposer(unsigned seed, Language language) : random_(seed), language_(language) {
    right_ = std::uniform_int_distribution<int>(0, 10)(random_);
  }
  void set_beginning(SequenceId id, const kv::CacheContext& context, uint64_t seed) {
    beginnings_[id] = {Language::begin(context), seed};
  }
  void propose(const DraftText& text, int32_t most, DraftProposal& proposal) override {
    ++num_known_[text.id];
    auto [digest, seed] = beginnings_.at(text.id);
    for (const TokenId token : text.tokens) digest = Language::extend(digest, token);
    const int32_t count = std::uniform_int_distribution<int32_t>(0, most)(random_);
    proposal.num_matched = std::uniform_int_distribution<int32_t>(1, 20)(random_);
    proposal.source = static_cast<DraftSource>(count % 3);
    for (int32_t i = 0; i < count; ++i) {
      const bool right = std::uniform_int_distribution<int>(1, 10)(random_) <= right_;
      const TokenId other = std::uniform_int_distribution<TokenId>(0, language_.vocabulary - 1)(random_);
      proposal.tokens.push_back(right ? language_.next(digest, seed) : other);
      proposal.agreement.push_back(1.0f);
      digest = Language::extend(digest, proposal.tokens.back());
    }
  }
  void ended(const DraftText& text) override {
    num_known_.erase(text.id);
    EXPECT_TRUE(ended_.insert(text.id).second) << "ended twice: " << text.id;
  }
  size_t num_known() const { return num_known_.size(); }

 private:
  std::mt19937 random_;
  Language language_;
  int right_ = 0;  // of ten
  std::map<SequenceId, std::pair<uint64_t, uint64_t>> beginnings_;
  std::map<SequenceId, int> num_known_;
  std::set<SequenceId> ended_;
};

// What there is of the prefix cache beyond the pool.
enum class Tiers { kNone, kMemory, kDisk };

class World {
 public:
  // drafts: half of the worlds speculate; else none. loses_runner: now and then whoever carries out the plans is gone,
  // and another one comes. pipeline: of several stages. states: of recurrent layers, with attention beside them or
  // without, and no drafts.
  explicit World(unsigned seed, bool drafts = true, Tiers tiers = Tiers::kNone, bool loses_runner = false,
                 bool pipeline = false, bool states = false)
      : random_(seed), disk_random_(seed + 1), disk_(seed), loses_runner_(loses_runner) {
    config_.max_num_seqs = between(1, 10);
    config_.max_num_batched_tokens = between(1, 48);
    config_.block_size = between(1, 6);
    config_.max_model_len = between(2, 100);
    config_.num_blocks = between(2, 40);
    switch (between(0, 3)) {
      case 0:
        config_.windows = {between(1, 20)};
        break;
      case 1:
        config_.windows = {0, between(1, 20)};
        config_.num_blocks *= 2;
        break;
      default:
        break;
    }
    config_.prefix_caching = between(0, 3) != 0;
    config_.num_swap_blocks = between(0, 1) * between(1, 40);
    config_.preemption_mode = static_cast<PreemptionMode>(between(0, 2));
    config_.long_prefill_token_threshold = between(0, 2) == 0 ? between(1, 10) : 0;
    config_.max_num_partial_prefills = between(1, 3);
    config_.watermark = between(0, 1) * 0.1;
    config_.tokens_per_priority_level = between(0, 1) * 100;
    config_.max_plans_in_flight = between(1, 3);
    config_.tokens_per_position = between(0, 2) * 0.02;
    if (drafts) {
      std::mt19937 own(seed);  // so that worlds are what they were before there were drafts
      const auto number = [&own](int low, int high) { return std::uniform_int_distribution<int>(low, high)(own); };
      if (number(0, 1) == 1) config_.max_draft_tokens = number(1, 12);
      config_.drafts_by_gain = number(0, 1) == 1;
      config_.max_drafting_sequences = number(0, 3) == 0 ? 4 : 0;
    }
    if (states) {
      config_.windows = seed % 4 == 0 ? std::vector<int32_t>{2} : std::vector<int32_t>{0, 2};
      config_.keeps_states = true;
      if (config_.windows.size() == 2) config_.num_blocks = config_.num_blocks * 3 / 2 + 1;
    }
    language_.vocabulary = between(8, 60);
    num_tenants_ = between(1, 3);
    // A few texts that requests begin with.
    for (int i = 0; i < 3; ++i) {
      std::vector<TokenId>& text = texts_.emplace_back();
      for (int j = 0; j < 60; ++j) text.push_back(between(4, 9));
    }
    if (tiers != Tiers::kNone) {
      // Few enough that what a plan under way still reads is wanted for something else.
      config_.num_offload_slots = 1 + static_cast<int32_t>(disk_random_() % (disk_random_() % 3 == 0 ? 80 : 16));
      config_.max_plans_in_flight = 1 + static_cast<int32_t>(disk_random_() % 4);
    }
    if (pipeline) {
      std::mt19937 own(seed);
      config_.num_stages = config_.max_plans_in_flight = std::uniform_int_distribution<int>(2, 4)(own);
      config_.least_stage_tokens = std::uniform_int_distribution<int>(1, 12)(own);
    }
    config_.offload_to_disk = config_.offload_writes = tiers == Tiers::kDisk;
    costs_ = {.seconds_per_recomputed_token = between(0, 4) * 1e-3, .seconds_per_swapped_block = between(1, 4) * 1e-3};
    if (drafts && config_.max_draft_tokens > 0) proposer_ = std::make_unique<RandomProposer>(seed, language_);
    begin();
  }

  void operation() {
    if (loses_runner_ && between(0, 30) == 0) lose_runner();
    const int choice = between(0, 19);
    if (choice <= 3 && requests_.size() < 20) {
      add();
    } else if (choice == 4 && between(0, 2) == 0) {
      cancel();
    } else if (choice == 5 && between(0, 20) == 0) {
      scheduler_->reset_prefix_cache();
    } else if (choice <= 13 || steps_.empty()) {
      schedule();
    } else {
      commit();
    }
    work_disk();
    scheduler_->check_invariants();
  }

  // The process ends and another begins, with what is on disk. REQUIRES: drained.
  void restart() {
    disk_.restart();
    begin();
    scheduler_->add_stored(disk_.index());
    scheduler_->check_invariants();
  }

  // Without new requests everything ends, within a bounded number of steps, and nothing is left.
  void drain() {
    int steps = 0;
    while (scheduler_->has_work()) {
      if (steps_.empty() && !schedule()) {
        ASSERT_TRUE(scheduler_->waits_for_disk()) << "work is left, but nothing is scheduled";
      }
      work_disk();
      commit();
      scheduler_->check_invariants();
      ASSERT_LT(++steps, 100000) << "no end";
    }
    ASSERT_TRUE(requests_.empty());
    const SchedulerStats stats = scheduler_->stats();
    // What the last step copied from may be held until the next one is planned.
    StepPlan none;
    ASSERT_FALSE(scheduler_->schedule(none));
    ASSERT_EQ(scheduler_->stats().blocks_used, 0);
    ASSERT_EQ(scheduler_->stats().swap_slots_used, 0);
    ASSERT_EQ(stats.running + stats.waiting, 0);
    if (proposer_ != nullptr) {
      ASSERT_EQ(proposer_->num_known(), 0u);
    }
    while (scheduler_->has_orders() || disk_.work(*memory_)) {
      disk_.take(scheduler_->take_orders());
      scheduler_->report(disk_.take_reports());
      scheduler_->check_invariants();
    }
    offload_.stored_blocks += stats.offload.stored_blocks;
    offload_.loaded_blocks += stats.offload.loaded_blocks;
    offload_.fetched_blocks += stats.offload.fetched_blocks;
    offload_.failed_fetches += stats.offload.failed_fetches;
    offload_.written_blocks += stats.offload.written_blocks;
    offload_.skipped_blocks += stats.offload.skipped_blocks;
  }

  const kv::OffloadStatistics& offload() const { return offload_; }  // of all drained so far
  SchedulerStats stats() const { return scheduler_->stats(); }
  int64_t num_finished() const { return num_finished_; }
  int64_t num_beam_answers() const { return num_beam_answers_; }
  int64_t num_copies() const { return num_copies_; }
  int64_t num_lost_runners() const { return num_lost_runners_; }

 private:
  struct Request {
    SequenceRequest asked;
    bool beams = false;
    std::vector<TokenId> answer;            // so far
    std::vector<std::vector<TokenId>> all;  // of a beam search
    int num_prompt_logprobs = 0;
  };
  struct Step {
    StepPlan plan;
    StepResult result;
    bool executed = true;
  };

  void begin() {
    scheduler_ = std::make_unique<Scheduler>(config_);
    scheduler_->set_preemption_costs(costs_);
    scheduler_->set_draft_proposer(proposer_.get());
    memory_ = std::make_unique<PagedMemory>(config_, language_);
  }

  // The disk works beside the steps, and what it has done is heard of at any time.
  void work_disk() {
    if (config_.num_offload_slots == 0) return;
    disk_.take(scheduler_->take_orders());
    for (auto turns = disk_random_() % 6; turns > 0; --turns) disk_.work(*memory_);
    if (disk_random_() % 50 == 0) disk_.lose_one();
    if (disk_random_() % 2 == 0) scheduler_->report(disk_.take_reports());
  }

  // Plans are carried out in their order, and not at once.
  void execute_up_to(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Step& step = steps_[i];
      if (step.executed) continue;
      step.result = memory_->execute(step.plan);
      step.executed = true;
    }
  }

  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  SequenceRequest draw_request() {
    SamplingParams params;
    params.max_tokens = between(0, 30);
    if (between(0, 5) == 0) params.max_tokens = std::nullopt;
    params.min_tokens = between(0, 3) == 0 ? between(0, params.max_tokens.value_or(3)) : 0;
    if (between(0, 2) == 0) params.stop_token_ids = {Language::kStop};
    if (between(0, 5) == 0) params.prompt_logprobs = 0;
    if (between(0, 5) == 0) {
      params.use_beam_search = true;
      params.beam_width = between(1, 4);
      params.n = between(1, *params.beam_width);
      params.early_stopping = static_cast<EarlyStopping>(between(0, 2));
      params.length_penalty = static_cast<float>(between(-1, 2));
    } else if (between(0, 8) == 0) {
      params.repetition_detection = RepetitionDetection{.max_pattern_size = 2, .min_pattern_size = 1, .min_count = 2};
    }
    SequenceRequest request;
    request.seed = static_cast<uint64_t>(between(0, 3));
    const std::vector<TokenId>& text = texts_[static_cast<size_t>(between(0, 2))];
    request.prompt.assign(text.begin(), text.begin() + between(0, 50));
    for (int own = between(0, 1) * between(0, 8); own > 0; --own) request.prompt.push_back(between(4, 30));
    if (between(0, 1) == 0) request.eos_ids = {Language::kEos};
    if (between(0, 4) == 0) request.context.salt = "s";
    request.tenant = between(1, num_tenants_);
    request.weight = request.tenant;
    request.priority = between(-1, 1);
    request.params = std::make_shared<const SamplingParams>(params);
    return request;
  }

  void add() {
    const SequenceRequest request = draw_request();
    const bool beams = request.params->use_beam_search && request.params->max_tokens != 0;
    const int copies = beams || between(0, 3) != 0 ? 1 : between(2, 4);
    SequenceId first = next_id_;
    for (int i = 0; i < copies; ++i) {
      SequenceRequest one = request;
      one.id = next_id_;
      next_id_ += static_cast<SequenceId>(std::max(1, request.params->num_beams()));
      one.seed += static_cast<uint64_t>(i);
      if (i > 0) one.fork_of = first;
      for (SequenceId id = one.id; id < next_id_; ++id) {
        contexts_[id] = one.context;
        memory_->set_context(id, one.context);
      }
      if (proposer_ != nullptr) {
        proposer_->set_beginning(one.id, one.context, one.seed);
      }
      one.takes_drafts = one.id % 7 != 0;
      const bool fits = scheduler_->check_fits(static_cast<int64_t>(one.prompt.size()), *one.params).ok();
      ASSERT_EQ(scheduler_->add(one).ok(), fits);
      if (!fits) return;
      const SequenceId id = one.id;
      Request& entry = requests_[id];
      entry.beams = beams;
      entry.asked = std::move(one);
    }
  }

  // Steps that were executed and not committed are lost with it.
  void lose_runner() {
    scheduler_->forget_runner();
    steps_.clear();
    memory_ = std::make_unique<PagedMemory>(config_, language_);
    for (const auto& [id, context] : contexts_) memory_->set_context(id, context);
    ++num_lost_runners_;
  }

  void cancel() {
    if (requests_.empty()) return;
    auto place = requests_.begin();
    std::advance(place, between(0, static_cast<int>(requests_.size()) - 1));
    ASSERT_TRUE(scheduler_->cancel(place->first));
    ASSERT_FALSE(scheduler_->cancel(place->first));
    requests_.erase(place);
  }

  bool schedule() {
    StepPlan plan = std::move(spare_);
    if (!scheduler_->schedule(plan)) {
      EXPECT_TRUE(!steps_.empty() || requests_.empty() || scheduler_->waits_for_disk());
      spare_ = std::move(plan);
      return false;
    }
    EXPECT_FALSE(plan.scheduled.empty());
    int32_t tokens = 0;
    for (const ScheduledSequence& run : plan.scheduled) tokens += run.num_rows();
    EXPECT_EQ(tokens, plan.num_tokens);
    EXPECT_LE(tokens, config_.max_num_batched_tokens);
    EXPECT_LE(static_cast<int32_t>(plan.scheduled.size()), config_.max_num_seqs);
    num_copies_ += static_cast<int64_t>(plan.copies.size());
    // Steps run in the order of their plans, before their results are looked at.
    steps_.push_back({std::move(plan), {}, false});
    if (config_.num_offload_slots > 0 && disk_random_() % 4 != 0) return true;
    execute_up_to(steps_.size());
    expect_told_tables(steps_.back().plan);
    return true;
  }

  // What the runner has put together of the differences is what the scheduler has.
  void expect_told_tables(const StepPlan& plan) const {
    for (const ScheduledSequence& run : plan.scheduled) {
      const kv::SequenceBlocks& own = *scheduler_->blocks_of(run.id);
      const BlockTables& told = memory_->tables(run.id);
      ASSERT_EQ(told.num_groups(), static_cast<size_t>(own.num_groups()));
      for (int32_t group = 0; group < own.num_groups(); ++group) {
        ASSERT_TRUE(std::ranges::equal(told.table(static_cast<size_t>(group)), own.table(group)))
            << "sequence " << run.id << ", group " << group;
      }
    }
  }

  void commit() {
    if (steps_.empty()) return;
    execute_up_to(1);
    Step step = std::move(steps_.front());
    steps_.pop_front();
    const PlannedStep planned(step.plan);
    scheduler_->step_took(planned, 5e-3 + 1e-3 * step.plan.num_tokens);
    for (CommitEvent& event : scheduler_->commit(planned, std::move(step.result))) take(event);
    spare_ = std::move(step.plan);
  }

  void take(CommitEvent& event) {
    SequenceId id = event.id;
    auto place = requests_.upper_bound(id);
    ASSERT_NE(place, requests_.begin());
    --place;  // a beam's id lies behind its request's
    Request& request = place->second;
    for (const PositionLogprobs& one : event.event.prompt_logprobs) {
      ASSERT_EQ(one.chosen.id, request.asked.prompt.at(static_cast<size_t>(++request.num_prompt_logprobs)));
    }
    if (request.beams) {
      ASSERT_EQ(id, place->first + request.all.size());
      ASSERT_NE(event.event.finish, FinishReason::kNone);
      request.all.push_back(std::move(event.event.tokens));
      if (request.all.size() < static_cast<size_t>(request.asked.params->n)) return;
      check_beams(request);
      ++num_beam_answers_;
    } else {
      ASSERT_EQ(id, place->first);
      for (const TokenId token : event.event.tokens) request.answer.push_back(token);
      if (event.event.finish == FinishReason::kNone) return;
      check_alone(request, event.event);
    }
    if (request.asked.params->prompt_logprobs) {
      ASSERT_EQ(request.num_prompt_logprobs, static_cast<int>(request.asked.prompt.size()) - 1);
    }
    ++num_finished_;
    requests_.erase(place);
  }

  int64_t longest(const Request& request) const {
    const auto prompt = static_cast<int64_t>(request.asked.prompt.size());
    if (request.asked.params->max_tokens) {
      return std::min<int64_t>(*request.asked.params->max_tokens, config_.max_model_len - prompt);
    }
    return config_.max_model_len - prompt;
  }

  // The answer that this request gets when nobody else is there.
  void check_alone(const Request& request, const TokenEvent& last) {
    const SamplingParams& params = *request.asked.params;
    uint64_t digest = Language::begin(request.asked.context);
    for (const TokenId token : request.asked.prompt) digest = Language::extend(digest, token);
    std::vector<TokenId> expected;
    FinishReason finish = FinishReason::kLength;
    while (static_cast<int64_t>(expected.size()) < longest(request)) {
      const TokenId token = language_.next(digest, request.asked.seed);
      expected.push_back(token);
      digest = Language::extend(digest, token);
      if (static_cast<int32_t>(expected.size()) < params.min_tokens) continue;
      if ((token == Language::kEos && !request.asked.eos_ids.empty()) ||
          (token == Language::kStop && !params.stop_token_ids.empty())) {
        finish = FinishReason::kStop;
        break;
      }
      const size_t n = expected.size();
      const auto same = [&](size_t a, size_t b) { return expected[n - a] == expected[n - b]; };
      if (params.repetition_detection && ((n >= 2 && same(1, 2)) || (n >= 4 && same(1, 3) && same(2, 4)))) {
        finish = FinishReason::kRepetition;
        break;
      }
    }
    if (!params.max_tokens && last.finish == FinishReason::kLength) {
      // As far as the pool reaches, which is the scheduler's own arithmetic.
      ASSERT_LE(request.answer.size(), expected.size());
      expected.resize(request.answer.size());
      finish = FinishReason::kLength;
    }
    ASSERT_EQ(request.answer, expected) << "request " << request.asked.id;
    ASSERT_EQ(last.finish, finish);
  }

  void check_beams(const Request& request) {
    const SamplingParams& params = *request.asked.params;
    if (!params.max_tokens) return;
    std::vector<TokenId> ends = request.asked.eos_ids;
    for (const TokenId id : params.stop_token_ids) ends.push_back(id);
    BeamSearch search({.num_beams = params.num_beams(),
                       .length_penalty = static_cast<double>(params.length_penalty),
                       .early_stopping = params.early_stopping,
                       .end_ids = ends,
                       .min_tokens = params.min_tokens,
                       .max_tokens = static_cast<int32_t>(longest(request))});
    uint64_t digest = Language::begin(request.asked.context);
    for (const TokenId token : request.asked.prompt) digest = Language::extend(digest, token);
    std::vector<uint64_t> digests = {digest};
    std::vector<BeamMoveChoice> moves;
    while (true) {
      std::vector<std::vector<TokenLogprob>> candidates;
      for (const uint64_t one : digests) candidates.push_back(language_.candidates(one, search.num_candidates()));
      if (!search.advance(candidates, moves)) break;
      std::vector<uint64_t> next;
      for (const BeamMoveChoice& move : moves) {
        next.push_back(Language::extend(digests[static_cast<size_t>(move.source)], move.token));
      }
      digests = std::move(next);
    }
    const std::vector<BeamAnswer> answers = search.take_answers();
    for (size_t i = 0; i < request.all.size(); ++i) {
      ASSERT_EQ(request.all[i], i < answers.size() ? answers[i].tokens : std::vector<TokenId>()) << "beam answer " << i;
    }
  }

  std::mt19937 random_;
  std::mt19937 disk_random_;  // of its own, so that worlds without tiers stay what they were
  FakeDisk disk_;
  bool loses_runner_;
  std::map<SequenceId, kv::CacheContext> contexts_;
  int64_t num_lost_runners_ = 0;
  SchedulerConfig config_;
  PreemptionCosts costs_;
  kv::OffloadStatistics offload_;
  Language language_;
  int num_tenants_ = 1;
  std::vector<std::vector<TokenId>> texts_;
  std::unique_ptr<RandomProposer> proposer_;  // nullptr: none
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<PagedMemory> memory_;
  std::map<SequenceId, Request> requests_;
  std::deque<Step> steps_;  // executed, not yet committed
  StepPlan spare_;
  SequenceId next_id_ = 1;
  int64_t num_finished_ = 0;
  int64_t num_beam_answers_ = 0;
  int64_t num_copies_ = 0;
};

}  // namespace quire::sched::testing_support
