#include "sched/beam_search.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"

namespace quire::sched {

// One way on: candidate `place` of an open beam.
struct BeamSearch::Step {
  int32_t beam;
  int32_t place;
  TokenId token;
  double sum;
};

BeamSearch::BeamSearch(Config config) : config_(std::move(config)) {
  QUIRE_CHECK(config_.num_beams >= 1 && config_.max_tokens >= 1);
  open_.resize(1);
}

// Enough that num_beams remain when every end id is among them.
int32_t BeamSearch::num_considered() const {
  return std::max(2, 1 + static_cast<int32_t>(config_.end_ids.size())) * config_.num_beams;
}

int32_t BeamSearch::num_candidates() const {
  return std::max(num_considered(), config_.logprobs.value_or(0));
}

BeamSearch::Beam BeamSearch::extended(const Step& step, std::span<const std::vector<TokenLogprob>> candidates) const {
  Beam beam = open_[static_cast<size_t>(step.beam)];
  beam.tokens.push_back(step.token);
  beam.sum = step.sum;
  if (config_.logprobs) {
    const std::vector<TokenLogprob>& offered = candidates[static_cast<size_t>(step.beam)];
    PositionLogprobs& logprobs = beam.logprobs.emplace_back();
    logprobs.chosen = offered[static_cast<size_t>(step.place)];
    const auto count = std::min(offered.size(), static_cast<size_t>(*config_.logprobs));
    logprobs.top.assign(offered.begin(), offered.begin() + static_cast<int64_t>(count));
  }
  return beam;
}

void BeamSearch::keep_finished(BeamAnswer answer) {
  const auto place = std::ranges::find_if(finished_, [&](const BeamAnswer& a) { return a.score < answer.score; });
  finished_.insert(place, std::move(answer));
  if (finished_.size() > static_cast<size_t>(config_.num_beams)) finished_.pop_back();
}

// Whether an open beam could still beat the worst finished answer; open_ is sorted, `length` what it has now.
bool BeamSearch::may_improve(int32_t length, bool more_to_come) const {
  if (!more_to_come) return false;
  const bool full = finished_.size() == static_cast<size_t>(config_.num_beams);
  if (full && config_.early_stopping == EarlyStopping::kTrue) return false;
  if (!full) return heuristic_open_;
  const bool at_any_length = config_.early_stopping == EarlyStopping::kNever && config_.length_penalty > 0;
  const int32_t best_length = at_any_length ? config_.max_tokens : length;
  const double best_possible = open_.front().sum / std::pow(best_length, config_.length_penalty);
  return heuristic_open_ && best_possible > finished_.back().score;
}

bool BeamSearch::advance(std::span<const std::vector<TokenLogprob>> candidates, std::vector<BeamMoveChoice>& moves) {
  QUIRE_CHECK(candidates.size() == open_.size());
  const auto width = static_cast<size_t>(config_.num_beams);
  std::vector<Step> steps;
  for (size_t beam = 0; beam < open_.size(); ++beam) {
    for (size_t place = 0; place < candidates[beam].size(); ++place) {
      const TokenLogprob& candidate = candidates[beam][place];
      if (!(candidate.logprob > -std::numeric_limits<float>::infinity())) continue;
      steps.push_back({static_cast<int32_t>(beam), static_cast<int32_t>(place), candidate.id,
                       open_[beam].sum + static_cast<double>(candidate.logprob)});
    }
  }
  std::ranges::stable_sort(steps, std::greater<>(), &Step::sum);
  const auto kept = static_cast<size_t>(num_considered());
  if (steps.size() > kept) steps.resize(kept);

  const auto length = static_cast<int32_t>(open_.front().tokens.size()) + 1;
  const double norm = std::pow(length, config_.length_penalty);
  const bool longest = length >= config_.max_tokens;
  const bool full = finished_.size() == width;
  const bool takes_more = heuristic_open_ && !(full && config_.early_stopping == EarlyStopping::kTrue);
  std::vector<Beam> open;
  moves.clear();
  bool all_end = true;
  for (size_t rank = 0; rank < steps.size(); ++rank) {
    const Step& step = steps[rank];
    const bool ends = length >= config_.min_tokens && std::ranges::count(config_.end_ids, step.token) > 0;
    if (!ends && !longest) {
      all_end = false;
      if (open.size() == width) continue;
      open.push_back(extended(step, candidates));
      moves.push_back({step.beam, step.token});
    } else if (rank < width && takes_more) {
      Beam beam = extended(step, candidates);
      keep_finished({.tokens = std::move(beam.tokens),
                     .logprobs = std::move(beam.logprobs),
                     .score = step.sum / norm,
                     .cumulative_logprob = step.sum,
                     .finish = ends ? FinishReason::kStop : FinishReason::kLength});
    }
  }
  if (!open.empty()) open_ = std::move(open);
  heuristic_open_ = may_improve(length, !all_end);
  return heuristic_open_;
}

std::vector<BeamAnswer> BeamSearch::take_answers() {
  return std::exchange(finished_, {});
}

}  // namespace quire::sched
