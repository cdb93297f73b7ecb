// Beam search over the candidates of each step, as transformers' generate() does it (num_beams, length_penalty,
// early_stopping): pure bookkeeping, without blocks or a model. Beams share the tokens that they have in common: a step
// costs the same however long the answers are.
//
// Every step each open beam offers its most likely next tokens. Of all those, ranked by the sum of log-probabilities,
// the first num_beams that do not end an answer go on; those that end one and are among the first num_beams are
// finished, and the best num_beams of the finished are kept by sum / length^length_penalty.
//
// A beam offers as many candidates as leave num_beams that go on when all end ids are among them, but for no more of
// them than kMostEndIdsAllowedFor or num_beams, whichever is more: the work of a step is bounded by the beams, whatever
// the list of end ids. With a longer list, a beam whose candidates are nearly all end ids has fewer ways on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "types/ids.h"
#include "types/sampling_params.h"
#include "types/step_plan.h"
#include "types/token_event.h"
#include "types/token_set.h"

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
    TokenSet end_ids;                 // each ends an answer
    std::vector<TokenId> eos_ids;     // these too; a few
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

  // `tokens`, which behind the first `begin` ones holds what this gave for `node` last (-1: nothing), becomes those of
  // an open beam: only where the two differ. `node` is then the beam's.
  void write_tokens(int32_t beam, size_t begin, int32_t& node, std::vector<TokenId>& tokens) const;

  // Candidates looked at by all advance() so far.
  int64_t num_ranked() const { return num_ranked_; }

  // The finished answers, the best first; num_beams of them unless there were too few ways on, and at most so many.
  std::vector<BeamAnswer> take_answers(size_t most = std::numeric_limits<size_t>::max());

 private:
  // A token of one or several beams. Those of a step are as many as go on.
  struct Node {
    int32_t parent;  // -1: none
    int32_t length;  // of the answer up to here
    TokenId token;
  };
  struct Beam {
    int32_t last = -1;  // of nodes_
    double sum = 0;
  };
  struct Finished {
    int32_t parent;  // of the token that ended it
    TokenId token;
    PositionLogprobs logprobs;
    double score;
    double sum;
    FinishReason finish;
  };
  struct Step;
  class RankedSteps;

  bool ends_answer(TokenId token) const;
  PositionLogprobs logprobs_of(const Step& step, std::span<const std::vector<TokenLogprob>> candidates) const;
  Beam extended(const Step& step, int32_t length, std::span<const std::vector<TokenLogprob>> candidates);
  void keep_finished(Finished answer);
  BeamAnswer answer_of(Finished&& finished) const;
  bool may_improve(int32_t length, bool more_to_come) const;

  Config config_;
  int32_t num_end_ids_ = 0;                 // different ones
  int32_t length_ = 0;                      // of the open beams' answers
  std::vector<Node> nodes_;                 // those that nobody goes on from too
  std::vector<PositionLogprobs> logprobs_;  // of nodes_, if asked for
  std::vector<Beam> open_;
  std::vector<Finished> finished_;  // the best first
  int64_t num_ranked_ = 0;
  bool heuristic_open_ = true;  // no step yet has shown that nothing better can come
};

}  // namespace quire::sched
