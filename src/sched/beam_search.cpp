#include "sched/beam_search.h"

#include <algorithm>
#include <cmath>
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

// All ways on in falling order of their sums, those of the lower beam first where they are equal, one at a time: a
// merge of the beams' own falling lists, in a heap of the beams.
class BeamSearch::RankedSteps {
 public:
  RankedSteps(const std::vector<Beam>& open, std::span<const std::vector<TokenLogprob>> candidates)
      : open_(open), candidates_(candidates) {
    for (size_t beam = 0; beam < open.size(); ++beam) push(static_cast<int32_t>(beam), 0);
  }

  std::optional<Step> next() {
    if (heads_.empty()) return std::nullopt;
    std::ranges::pop_heap(heads_, comes_later);
    const Step step = heads_.back();
    heads_.pop_back();
    push(step.beam, step.place + 1);
    ++num_given_;
    return step;
  }
  int64_t num_given() const { return num_given_; }

 private:
  static bool comes_later(const Step& a, const Step& b) { return a.sum < b.sum || (a.sum == b.sum && a.beam > b.beam); }
  void push(int32_t beam, int32_t place) {
    const std::vector<TokenLogprob>& offered = candidates_[static_cast<size_t>(beam)];
    if (static_cast<size_t>(place) >= offered.size()) return;
    const TokenLogprob& candidate = offered[static_cast<size_t>(place)];
    // What cannot be said: nor can those behind it.
    if (!(candidate.logprob > -std::numeric_limits<float>::infinity())) return;
    const double sum = open_[static_cast<size_t>(beam)].sum + static_cast<double>(candidate.logprob);
    heads_.push_back({beam, place, candidate.id, sum});
    std::ranges::push_heap(heads_, comes_later);
  }

  const std::vector<Beam>& open_;
  std::span<const std::vector<TokenLogprob>> candidates_;
  std::vector<Step> heads_;  // at most one a beam
  int64_t num_given_ = 0;
};

BeamSearch::BeamSearch(Config config) : config_(std::move(config)) {
  QUIRE_CHECK(config_.num_beams >= 1 && config_.max_tokens >= 1);
  open_.resize(1);
  std::erase_if(config_.eos_ids, [this](TokenId id) { return config_.end_ids.contains(id); });
  num_end_ids_ = static_cast<int32_t>(config_.end_ids.size() + TokenSet(config_.eos_ids).size());
}

bool BeamSearch::ends_answer(TokenId token) const {
  return config_.end_ids.contains(token) || std::ranges::count(config_.eos_ids, token) > 0;
}

// num_beams that go on lie among so many more as there are end ids; the best num_beams of all, which may end an answer,
// among them too.
int32_t BeamSearch::num_candidates() const {
  const int32_t beams = config_.num_beams;
  const int32_t allowed_for = std::max(beams, std::min(num_end_ids_, kMostEndIdsAllowedFor));
  return std::max(beams + allowed_for, config_.logprobs.value_or(0));
}

PositionLogprobs BeamSearch::logprobs_of(const Step& step,
                                         std::span<const std::vector<TokenLogprob>> candidates) const {
  PositionLogprobs logprobs;
  if (!config_.logprobs) return logprobs;
  const std::vector<TokenLogprob>& offered = candidates[static_cast<size_t>(step.beam)];
  logprobs.chosen = offered[static_cast<size_t>(step.place)];
  const auto count = std::min(offered.size(), static_cast<size_t>(*config_.logprobs));
  logprobs.top.assign(offered.begin(), offered.begin() + static_cast<int64_t>(count));
  return logprobs;
}

BeamSearch::Beam BeamSearch::extended(const Step& step, int32_t length,
                                      std::span<const std::vector<TokenLogprob>> candidates) {
  nodes_.push_back({open_[static_cast<size_t>(step.beam)].last, length, step.token});
  if (config_.logprobs) logprobs_.push_back(logprobs_of(step, candidates));
  return {static_cast<int32_t>(nodes_.size()) - 1, step.sum};
}

void BeamSearch::keep_finished(Finished answer) {
  const auto place = std::ranges::find_if(finished_, [&](const Finished& a) { return a.score < answer.score; });
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
  const int32_t length = length_ + 1;
  const double norm = std::pow(length, config_.length_penalty);
  const bool longest = length >= config_.max_tokens;
  const bool full = finished_.size() == width;
  const bool takes_more = heuristic_open_ && !(full && config_.early_stopping == EarlyStopping::kTrue);
  std::vector<Beam> open;
  moves.clear();
  bool all_end = true;
  RankedSteps steps(open_, candidates);
  // Behind the first num_beams of all nothing is finished, so what goes on is all that is still looked for.
  for (size_t rank = 0; rank < width || (open.size() < width && !longest); ++rank) {
    const std::optional<Step> step = steps.next();
    if (!step) break;
    const bool ends = length >= config_.min_tokens && ends_answer(step->token);
    if (!ends && !longest) {
      all_end = false;
      if (open.size() == width) continue;
      open.push_back(extended(*step, length, candidates));
      moves.push_back({step->beam, step->token});
    } else if (rank < width && takes_more) {
      keep_finished({.parent = open_[static_cast<size_t>(step->beam)].last,
                     .token = step->token,
                     .logprobs = logprobs_of(*step, candidates),
                     .score = step->sum / norm,
                     .sum = step->sum,
                     .finish = ends ? FinishReason::kStop : FinishReason::kLength});
    }
  }
  num_ranked_ += steps.num_given();
  if (!open.empty()) {
    open_ = std::move(open);
    length_ = length;
  }
  heuristic_open_ = may_improve(length, !all_end);
  return heuristic_open_;
}

void BeamSearch::write_tokens(int32_t beam, size_t begin, int32_t& node, std::vector<TokenId>& tokens) const {
  const int32_t last = open_[static_cast<size_t>(beam)].last;
  const auto length_of = [this](int32_t one) { return one < 0 ? 0 : nodes_[static_cast<size_t>(one)].length; };
  const auto parent_of = [this](int32_t one) { return nodes_[static_cast<size_t>(one)].parent; };
  tokens.resize(begin + static_cast<size_t>(length_of(last)));
  int32_t ours = last;
  int32_t theirs = node;
  while (ours != theirs) {
    if (length_of(theirs) > length_of(ours)) {
      theirs = parent_of(theirs);
      continue;
    }
    const Node& one = nodes_[static_cast<size_t>(ours)];
    tokens[begin + static_cast<size_t>(one.length) - 1] = one.token;
    ours = one.parent;
  }
  node = last;
}

BeamAnswer BeamSearch::answer_of(Finished&& finished) const {
  BeamAnswer answer{.tokens = {finished.token},
                    .logprobs = {},
                    .score = finished.score,
                    .cumulative_logprob = finished.sum,
                    .finish = finished.finish};
  if (config_.logprobs) answer.logprobs.push_back(std::move(finished.logprobs));
  for (int32_t node = finished.parent; node >= 0; node = nodes_[static_cast<size_t>(node)].parent) {
    answer.tokens.push_back(nodes_[static_cast<size_t>(node)].token);
    if (config_.logprobs) answer.logprobs.push_back(logprobs_[static_cast<size_t>(node)]);
  }
  std::ranges::reverse(answer.tokens);
  std::ranges::reverse(answer.logprobs);
  return answer;
}

std::vector<BeamAnswer> BeamSearch::take_answers(size_t most) {
  std::vector<BeamAnswer> answers;
  for (Finished& finished : std::exchange(finished_, {})) {
    if (answers.size() == most) break;
    answers.push_back(answer_of(std::move(finished)));
  }
  return answers;
}

}  // namespace quire::sched
