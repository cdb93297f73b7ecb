// Two tenants that always have as much work as they may, beside 32 that ask for a little now and then: how long those
// wait for a first token, in virtual time. Steps take what the default model's take on two cores; lengths, pauses and
// bad requests are those of scripts/worst_requests.py, as far as a scheduler sees them.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sched/scheduler.h"

namespace quire::sched {
namespace {

constexpr double kSecondsPerToken = 0.62e-3;
constexpr double kHostPerRow = 0.25e-3;  // a token is chosen
constexpr double kTokensPerPosition = 3.3e-4;
constexpr int32_t kDefaultContext = 8192;
constexpr double kPatience = 60;  // seconds until a bad client hangs up

SchedulerConfig default_models_config() {
  SchedulerConfig config;
  config.max_num_batched_tokens = 512;
  config.max_model_len = kDefaultContext;
  config.num_blocks = 2912;  // 1 GiB of the default model's
  config.tokens_per_position = kTokensPerPosition;
  return config;
}

class VirtualServer {
 public:
  // pause: seconds that an ordinary client thinks, on the mean.
  VirtualServer(double pause, bool with_bad)
      : pause_(pause), with_bad_(with_bad), scheduler_(default_models_config()), ordinary_(32) {
    scheduler_.set_preemption_costs({.seconds_per_recomputed_token = kSecondsPerToken});
    for (Ordinary& client : ordinary_) client.asks_at = std::uniform_real_distribution<double>(0, pause)(random_);
    bad_[1].turn = 3;
  }

  void run(double seconds) {
    while (now_ < seconds) {
      ask();
      if (scheduler_.schedule(plan_)) {
        step();
      } else {
        now_ = next_;
      }
    }
  }

  // Of the times to the first token.
  double percentile(double share) {
    std::ranges::sort(first_tokens_);
    return first_tokens_.at(static_cast<size_t>(share * static_cast<double>(first_tokens_.size())));
  }
  double bad_tokens_per_second() const { return static_cast<double>(bad_tokens_) / now_; }

 private:
  struct Ordinary {
    double asks_at = 0;
    bool asked = false;
    bool answered = false;  // its first token is there
  };
  struct Bad {
    double asks_at = 0;
    double asked_at = 0;
    int turn = 0;
    std::vector<SequenceId> open;
  };
  static constexpr int kFirstBad = 100;  // tenants: before it the ordinary clients, by their place

  void add(int tenant, int prompt, int answer, SequenceId fork_of = 0) {
    SequenceRequest request;
    request.id = next_id_++;
    for (int i = 0; i < prompt; ++i) request.prompt.push_back(static_cast<TokenId>(random_() % 49152));
    if (fork_of != 0) {
      request.prompt = prompt_;
      request.fork_of = fork_of;
    }
    prompt_ = request.prompt;
    SamplingParams params;
    params.max_tokens = answer;
    request.params = std::make_shared<const SamplingParams>(std::move(params));
    request.tenant = tenant;
    request.host_work = 491'520;
    owner_[request.id] = tenant;
    ASSERT_TRUE(scheduler_.add(std::move(request)).ok());
  }

  // What comes until now; next_ is when the next will.
  void ask() {
    next_ = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < ordinary_.size(); ++i) {
      Ordinary& client = ordinary_[i];
      if (client.asked) continue;
      if (client.asks_at <= now_) {
        client.asked = true;
        client.answered = false;
        add(static_cast<int>(i), 16 + static_cast<int>(random_() % 144), 24);
      } else {
        next_ = std::min(next_, client.asks_at);
      }
    }
    for (size_t i = 0; with_bad_ && i < bad_.size(); ++i) {
      Bad& client = bad_[i];
      if (!client.open.empty() && now_ - client.asked_at > kPatience) {
        for (const SequenceId id : client.open) scheduler_.cancel(id);
        client.open.clear();
        client.asks_at = now_;
      }
      if (!client.open.empty()) continue;
      if (client.asks_at > now_) {
        next_ = std::min(next_, client.asks_at);
        continue;
      }
      client.asked_at = now_;
      constexpr std::array<int, 4> kLengths = {64, 48, 32, 256};  // of 128 answers
      const auto turn = static_cast<size_t>(client.turn++) % (kLengths.size() + 1);
      const bool long_prompts = turn == kLengths.size();
      const int tenant = kFirstBad + static_cast<int>(i);
      const SequenceId first = next_id_;
      for (int answer = 0; answer < (long_prompts ? 16 : 128); ++answer) {
        client.open.push_back(next_id_);
        if (long_prompts) {
          add(tenant, kDefaultContext - 8, 1);
        } else {
          add(tenant, 1, kLengths[turn], answer == 0 ? 0 : first);
        }
      }
    }
  }

  void step() {
    double cost = 0;
    StepResult result;
    result.step = plan_.step;
    double host = 0;
    for (const ScheduledSequence& run : plan_.scheduled) {
      cost += cost_in_tokens(kTokensPerPosition, run.num_computed_tokens, run.num_new_tokens);
      SequenceResult& one = result.sequences.emplace_back();
      one.id = run.id;
      if (owner_.at(run.id) >= kFirstBad) bad_tokens_ += run.num_new_tokens;
      if (!run.samples) continue;
      one.tokens = {static_cast<TokenId>(random_() % 49152)};
      host += kHostPerRow;
    }
    now_ += std::max(5e-3, 1.5e-3 + kSecondsPerToken * cost) + 1e-3 + host;
    for (const CommitEvent& event : scheduler_.commit(plan_, std::move(result))) {
      const int tenant = owner_.at(event.id);
      const bool ends = event.event.finish != FinishReason::kNone;
      if (ends) owner_.erase(event.id);
      if (tenant >= kFirstBad) {
        Bad& client = bad_.at(static_cast<size_t>(tenant - kFirstBad));
        if (!ends) continue;
        std::erase(client.open, event.id);
        if (client.open.empty()) client.asks_at = now_ + std::uniform_real_distribution<double>(0, 1.5)(random_);
        continue;
      }
      Ordinary& client = ordinary_.at(static_cast<size_t>(tenant));
      if (!std::exchange(client.answered, true)) first_tokens_.push_back(now_ - client.asks_at);
      if (!ends) continue;
      client.asked = false;
      client.asks_at = now_ + std::exponential_distribution<double>(1 / pause_)(random_);
    }
  }

  const double pause_;
  const bool with_bad_;
  Scheduler scheduler_;
  std::mt19937_64 random_{20261126};
  std::vector<Ordinary> ordinary_;
  std::array<Bad, 2> bad_;
  std::unordered_map<SequenceId, int> owner_;
  std::vector<TokenId> prompt_;  // of the last that was added
  std::vector<double> first_tokens_;
  StepPlan plan_;
  SequenceId next_id_ = 1;
  int64_t bad_tokens_ = 0;
  double now_ = 0;
  double next_ = 0;
};

class WorstTenants : public testing::TestWithParam<double> {};

TEST_P(WorstTenants, FirstTokensOfOthersComeHalfAsLateAgainAtMost) {
  VirtualServer alone(GetParam(), /*with_bad=*/false);
  VirtualServer beside(GetParam(), /*with_bad=*/true);
  alone.run(600);
  beside.run(600);
  for (const double share : {0.5, 0.9, 0.95, 0.99}) {
    EXPECT_LE(beside.percentile(share), 1.5 * alone.percentile(share)) << "percentile " << 100 * share;
  }
  EXPECT_GT(beside.bad_tokens_per_second(), 200) << "they have what is left";
  RecordProperty("p95_alone_ms", static_cast<int>(1e3 * alone.percentile(0.95)));
  RecordProperty("p95_beside_ms", static_cast<int>(1e3 * beside.percentile(0.95)));
}

INSTANTIATE_TEST_SUITE_P(Pauses, WorstTenants, testing::Values(10.0, 5.0, 2.0));

}  // namespace
}  // namespace quire::sched
