// Beam search over the candidates of each step, as transformers' generate() does it (num_beams, length_penalty,
// early_stopping): pure bookkeeping, without blocks or a model.
//
// Every step each open beam offers its most likely next tokens. Of all those, ranked by the sum of log-probabilities,
// the first num_beams that do not end an answer go on; those that end one and are among the first num_beams are
// finished, and the best num_beams of the finished are kept by sum / length^length_penalty.
//
// A beam offers as many candidates as leave num_beams that go on when all end ids are among them, but for no more of
// them than kMostEndIdsAllowedFor or num_beams, whichever is more: the work of a step is bounded by the beams, whatever
// the list of end ids. With a longer list, a beam whose candidates are nearly all end ids has fewer ways on.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "types/ids.h"
#include "types/sampling_params.h"
#include "types/step_plan.h"
#include "types/token_event.h"

namespace quire::sched {

struct BeamMoveChoice {
  int32_t source = 0;  // the beam that goes on
  TokenId token = kNoToken;
};

struct BeamAnswer {
  std::vector<TokenId> tokens;             // the token that ended it included
  std::vector<PositionLogprobs> logprobs;  // beside tokens, if asked for
  double score = 0;                        // sum of logprobs / length^length_penalty
  double cumulative_logprob = 0;
  FinishReason finish = FinishReason::kLength;  // kStop: by one of the end ids
};

class BeamSearch {
 public:
  struct Config {
    int32_t num_beams = 1;
    double length_penalty = 1.0;
    EarlyStopping early_stopping = EarlyStopping::kFalse;
    std::vector<TokenId> end_ids;     // each ends an answer; not negative, in any order, repeated or not
    int32_t min_tokens = 0;           // before so many tokens no end id ends one
    int32_t max_tokens = 0;           // >= 1, of an answer
    std::optional<int32_t> logprobs;  // alternatives beside each token
  };
  explicit BeamSearch(Config config);
  static constexpr int32_t kMostEndIdsAllowedFor = 64;

  // How many candidates each beam must offer.
  int32_t num_candidates() const;
  // How many beams are open: one before the first step, num_beams after it.
  int32_t num_open() const { return static_cast<int32_t>(open_.size()); }

  // candidates: of each open beam, falling. True: the search goes on with beam i becoming moves[i]; there are num_beams
  // of them, or fewer when the vocabulary has no more. False: it is over.
  bool advance(std::span<const std::vector<TokenLogprob>> candidates, std::vector<BeamMoveChoice>& moves);

  // Candidates looked at by all advance() so far.
  int64_t num_ranked() const { return num_ranked_; }

  // The finished answers, the best first; num_beams of them unless there were too few ways on.
  std::vector<BeamAnswer> take_answers();

 private:
  struct Beam {
    std::vector<TokenId> tokens;
    std::vector<PositionLogprobs> logprobs;
    double sum = 0;
  };
  struct Step;
  class RankedSteps;

  bool ends_answer(TokenId token) const;
  Beam extended(const Step& step, std::span<const std::vector<TokenLogprob>> candidates) const;
  void keep_finished(BeamAnswer answer);
  bool may_improve(int32_t length, bool more_to_come) const;

  Config config_;
  std::vector<bool> is_end_id_;  // by token, up to the largest; in the place of config_.end_ids
  int32_t num_end_ids_ = 0;      // different ones
  std::vector<Beam> open_;
  std::vector<BeamAnswer> finished_;  // the best first
  int64_t num_ranked_ = 0;
  bool heuristic_open_ = true;  // no step yet has shown that nothing better can come
};

}  // namespace quire::sched
