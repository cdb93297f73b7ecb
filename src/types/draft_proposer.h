// Who guesses what follows a text (speculative decoding). The scheduler asks beside every step that samples and decides
// how many of the guesses are computed; a wrong one costs a row of the step and changes nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "types/draft_probability.h"
#include "types/ids.h"

namespace quire {

struct SamplingParams;

// A sequence as a proposer sees it.
struct DraftText {
  SequenceId id = 0;
  std::span<const TokenId> tokens;  // prompt, then the answer so far; only ever grows
  int32_t num_prompt_tokens = 0;
  std::span<const TokenId> prediction;  // what its client expects the answer to be; empty: it does not say
  // Nobody's text shows in the speed of another's answer: what is remembered of one is for those of the same tenant,
  // salt and adapter alone.
  int32_t tenant = 0;
  std::string_view salt;
  int32_t adapter = 0;
  // How the answer is drawn, for who draws guesses too; nullptr: it does not say.
  const SamplingParams* params = nullptr;
  uint64_t seed = 0;
  int32_t most_computed = 0;  // guesses that a model may make, whose time they cost; 0: none
};

enum class DraftSource : uint8_t {
  kText,        // of this text or of others
  kPrediction,  // of the request's own
  kModel,
};

struct DraftProposal {
  std::vector<TokenId> tokens;
  // Beside tokens: the share of the places where the text went on like this so far that agree on the token, (0, 1]; of
  // a model its probability.
  std::vector<float> agreement;
  // Where guesses were drawn, beside tokens: how many of the probabilities are those that it was drawn from, which add
  // up to 1. Empty: they are certain. Of guesses that were drawn agreement says nothing of what came out: how many of
  // them are computed must not depend on that, or answers would not be distributed as the model says.
  std::vector<int32_t> num_choices;
  std::vector<DraftProbability> probabilities;  // of one guess after the other
  int32_t num_matched = 0;                      // tokens at the end of the text that were found again
  DraftSource source = DraftSource::kText;

  void clear() {
    tokens.clear();
    agreement.clear();
    num_choices.clear();
    probabilities.clear();
    num_matched = 0;
    source = DraftSource::kText;
  }
};

// Used by one thread at a time.
class DraftProposer {
 public:
  virtual ~DraftProposer() = default;
  // Fills an empty proposal with at most `most` tokens (>= 1), which are ids of texts it was given; leaves it empty
  // where it has no guess.
  virtual void propose(const DraftText& text, int32_t most, DraftProposal& proposal) = 0;
  // What a model takes for each guess, in seconds; 0: not known yet, or there is none.
  virtual double seconds_per_token() const { return 0; }
  // What it takes before the first of them, in seconds: all of it where a pass makes any number of guesses.
  virtual double seconds_at_once() const { return 0; }
  // What it takes once, before the first guess of this text: of what is there of it the model has so much still to
  // compute. In seconds; 0: not known, or nothing.
  virtual double seconds_before(const DraftText& /*text*/) const { return 0; }
  // Whether a model is asked where texts say nothing: then most_computed is to be worked out.
  virtual bool computes() const { return false; }
  // The sequence has ended; of every one that may be guessed for, asked for or not, once.
  virtual void ended(const DraftText& text) = 0;
};

}  // namespace quire
