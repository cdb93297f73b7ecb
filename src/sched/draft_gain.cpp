#include "sched/draft_gain.h"

#include <algorithm>
#include <queue>

namespace quire::sched {
namespace {

// By so much the rate must rise for each draft token: rates are guesses, and rows that come to nothing make everybody's
// token later.
constexpr double kMargin = 1.03;

}  // namespace

size_t StepCost::size_of(double cost) {
  constexpr std::array<double, kSizes - 1> kMost = {1.5, 2.5, 3.5, 4.5, 6.5, 8.5, 12.5, 16.5};
  return static_cast<size_t>(std::ranges::upper_bound(kMost, cost) - kMost.begin());
}

void StepCost::observe(double cost, double seconds) {
  if (seconds <= 0) return;
  const double x = std::max(cost, 1.0);
  if (seconds_ == 0) {
    seconds_ = seconds / relative(x);
    return;
  }
  // Steepest descent on the relative error. Machines are slower and faster by the minute: steps of one token say by how
  // much, and the level follows quickly; what a row costs is the machine's and the model's, and follows slowly.
  constexpr double kQuickly = 1.0 / 16;
  constexpr double kSlowly = 1.0 / 64;
  const double error = std::clamp(seconds / (seconds_ * relative(x)) - 1, -0.5, 0.5);
  const size_t size = size_of(x);
  if (size == 0) {
    seconds_ *= 1 + kQuickly * error;
    return;
  }
  const double lever = (x - 1) * slope_ / line(x);  // d log T / d log slope
  seconds_ *= 1 + kSlowly * error;
  slope_ = std::clamp(slope_ * (1 + kQuickly * error * lever), 0.01, 2.0);
  if (size + 1 < kSizes) shape_[size] = std::clamp(shape_[size] * (1 + kQuickly * error), 0.4, 1.6);
}

size_t DraftRates::class_of(int32_t num_matched, float agreement, DraftSource source) {
  if (source == DraftSource::kModel) {
    constexpr std::array<float, kModelClasses - 1> kMost = {0.3f, 0.6f, 0.8f, 0.95f};
    return kFirstOfModel + static_cast<size_t>(std::ranges::upper_bound(kMost, agreement) - kMost.begin());
  }
  constexpr float kAgreed = 0.99f;
  const size_t agreed = agreement >= kAgreed ? 1 : 0;
  if (source == DraftSource::kPrediction) return 2 * kMatchClasses + (num_matched > 4 ? 1 : 0);
  size_t match = 0;
  for (int32_t most = 1; match + 1 < kMatchClasses && num_matched > most; most *= 2) ++match;
  return 2 * match + agreed;
}

void DraftRates::observe(int32_t num_matched, float agreement, DraftSource source, bool right) {
  constexpr float kMost = 32;  // what is longer ago counts for little
  Count& count = counts_[class_of(num_matched, agreement, source)];
  if (count.all >= kMost) {
    count.right *= 1 - 1 / kMost;
    count.all *= 1 - 1 / kMost;
  }
  count.all += 1;
  count.right += right ? 1 : 0;
}

double DraftRates::rate(int32_t num_matched, float agreement, DraftSource source, const DraftRates* all) const {
  constexpr double kWeightOfAll = 3;  // in guesses of the sequence's own
  const size_t at = class_of(num_matched, agreement, source);
  // Where nothing is known: longer matches go on longer.
  const double guess = source == DraftSource::kPrediction ? 0.8
                       : source == DraftSource::kModel
                           ? static_cast<double>(agreement)
                           : std::min(0.9, 0.4 + 0.05 * num_matched) * static_cast<double>(agreement);
  double before = guess;
  if (all != nullptr) {
    const Count& known = all->counts_[at];
    before = (static_cast<double>(known.right) + guess) / (static_cast<double>(known.all) + 1);
  }
  const Count& own = counts_[at];
  return (static_cast<double>(own.right) + kWeightOfAll * before) / (static_cast<double>(own.all) + kWeightOfAll);
}

DraftRates::Count DraftRates::of_model() const {
  Count sum;
  for (size_t at = kFirstOfModel; at < kClasses; ++at) {
    sum.right += counts_[at].right;
    sum.all += counts_[at].all;
  }
  return sum;
}

double DraftRates::rate_of_model(const DraftRates* all) const {
  constexpr double kWeightOfAll = 8;
  constexpr double kGuess = 0.7;
  const Count known = all != nullptr ? all->of_model() : Count();
  const double before = (static_cast<double>(known.right) + kGuess) / (static_cast<double>(known.all) + 1);
  const Count own = of_model();
  return (static_cast<double>(own.right) + kWeightOfAll * before) / (static_cast<double>(own.all) + kWeightOfAll);
}

int32_t worth_computing(const StepCost& step, double cost, int32_t num_sampling, int32_t num_drafting, double row_cost,
                        const GuessCost& guess, double rate, int32_t most) {
  double best = num_sampling / step.relative(cost);
  int32_t worth = 0;
  double tokens = num_sampling;
  double chance = 1;
  for (int32_t k = 1; k <= most; ++k) {
    chance *= rate;
    tokens += num_drafting * chance;
    const double own = num_drafting * (guess.once + guess.each * k);
    const double with = tokens / (step.relative(cost + row_cost * num_drafting * k) + own);
    if (with <= best * (worth == 0 ? kMargin : 1)) continue;
    best = with;
    worth = k;
  }
  return worth;
}

bool may_gain(const StepCost& step, double cost, int32_t num_sampling) {
  const double n = num_sampling;
  return (n + 1) / step.relative(cost + 1) > n / step.relative(cost) * (1 + (kMargin - 1) / (n + 1));
}

void grant_drafts(std::span<DraftBid> bids, const DraftRates& all, const StepCost& step, double cost,
                  int32_t num_sampling, int32_t most_tokens) {
  struct Next {
    double expected;  // tokens that it adds
    size_t bid;
    bool operator<(const Next& other) const {
      return expected < other.expected || (expected == other.expected && bid > other.bid);
    }
  };
  const auto next_of = [&](size_t bid, double before) {
    const DraftBid& b = bids[bid];
    const auto at = static_cast<size_t>(b.granted);
    const DraftProposal& proposal = *b.proposal;
    return Next{before * b.rates->rate(proposal.num_matched + b.granted, proposal.agreement[at], proposal.source, &all),
                bid};
  };
  const auto is_left = [](const DraftBid& b) {
    return b.granted < b.most && static_cast<size_t>(b.granted) < b.proposal->tokens.size();
  };
  std::priority_queue<Next> queue;
  for (size_t i = 0; i < bids.size(); ++i) {
    bids[i].granted = 0;
    if (is_left(bids[i])) queue.push(next_of(i, 1));
  }
  double tokens = num_sampling;
  double best = tokens / step.relative(cost);
  std::vector<size_t> since_best;  // grants that have not paid yet
  for (int32_t taken = 0; taken < most_tokens && !queue.empty(); ++taken) {
    const Next next = queue.top();
    queue.pop();
    DraftBid& bid = bids[next.bid];
    tokens += next.expected;
    cost += bid.cost;
    ++bid.granted;
    since_best.push_back(next.bid);
    // A draft pays when the rate rises as if its tokens alone had to carry the margin.
    const double rate = tokens / step.relative(cost);
    const double wanted = best * (1 + (kMargin - 1) * static_cast<double>(since_best.size()) / tokens);
    if (rate > wanted) {
      best = rate;
      since_best.clear();
    }
    if (is_left(bid)) queue.push(next_of(next.bid, next.expected));
  }
  for (const size_t bid : since_best) --bids[bid].granted;
}

}  // namespace quire::sched
