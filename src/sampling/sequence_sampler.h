// Chooses the next token of one sequence from a row of logits on the host.
//
// The order of the steps is that of vLLM's V1 sampler (vllm/v1/sample/sampler.py). The samplers that
// vLLM does not have stand where llama.cpp's default chain has them relative to the others; steps
// that a request does not ask for cost nothing:
//  1. log-probabilities, if asked for, of the raw logits ("raw_logprobs");
//  2. the constraint of structured output, then allowed_token_ids: all other tokens are banned (-inf);
//  3. bad_words: the token that would complete one of them is banned; the words may begin in the prompt;
//  4. min_tokens: while fewer tokens have been sampled, the stop ids are banned, unless the constraint leaves no other;
//  5. logit_bias: added, each clamped to [-100, 100]; several of one id add up;
//  6. penalties: repetition (tokens of prompt and output: positive logits divided by it, others multiplied), then
//     frequency (times the count in the output), then presence (tokens of the output);
//  7. dry (sampling/dry.h);
//  8. temperature under 1e-5: the largest logit, the lowest id among equals, and no further step;
//  9. mirostat (sampling/mirostat.h), if it is on: divides by temperature, draws, and no further step;
// 10. top_n_sigma; 11. divide by the temperature, dynatemp's if it is on (under 1e-5: as in 8);
// 12. min_p: tokens less probable than min_p times the most probable are dropped;
// 13. top_k: the k most probable are kept, and those equal to the k-th;
// 14. typical_p; 15. top_p: of what is left, renormalised, the smallest set of the most probable (lower ids first among
//     equals) whose mass reaches top_p, at least one; 16. xtc, decided by a number of its own (sampling/filters.h);
// 17. one of what is left is drawn by inverting the cumulative distribution at uniform(seed, index of the token); a
//     guess of the token may be taken instead, by another rule than to be what is drawn (sampling/guess.h). Mirostat,
//     which has a state of its own, compares.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/edit_logits.h"
#include "sampling/guess.h"
#include "sampling/sampler_tables.h"
#include "sampling/scratch.h"
#include "sampling/token_counts.h"
#include "sampling/token_history.h"
#include "types/ids.h"
#include "types/sampling_params.h"
#include "types/step_plan.h"
#include "types/token_constraint.h"

namespace quire::sampling {

struct SampledToken {
  TokenId id = kNoToken;
  std::optional<PositionLogprobs> logprobs;  // if params.logprobs is set
};

// What a token is drawn by from logits after step 6 where a request asks for nothing further but temperature, min_p,
// top_k and top_p, in this order.
struct PlainChoice {
  float temperature = 0;  // 0: the largest logit
  float min_p = 0;
  int32_t top_k = 0;  // 0: all
  float top_p = 1;
  double u = 0;  // the number that the token is drawn with
};

// A constraint's state that is copied with whoever holds it.
class ConstraintState {
 public:
  ConstraintState() = default;
  explicit ConstraintState(const TokenMasks* masks) : state_(masks == nullptr ? nullptr : masks->start()) {}
  ConstraintState(const ConstraintState& other) : state_(other.state_ ? other.state_->clone() : nullptr) {}
  ConstraintState(ConstraintState&&) = default;
  ConstraintState& operator=(ConstraintState other) noexcept {
    state_ = std::move(other.state_);
    return *this;
  }

  explicit operator bool() const { return state_ != nullptr; }
  TokenMasks::State* operator->() const { return state_.get(); }

 private:
  std::unique_ptr<TokenMasks::State> state_;
};

// One a sequence, owned by the runner from the plan that adds the sequence to the one that retires
// it; preemption does not touch it. A draw depends on the seed, on the sequence's own tokens and on
// how many were sampled before, on nothing else: not on the batch, the chunking or the thread. A copy
// goes on by itself from where it was made, and costs the same however long text and lists are: it shares them. Several
// samplers may work at once, each with a scratch of its thread.
class SequenceSampler {
 public:
  // tables: of the request, shared with its other answers. sampled: tokens of the answer that exist already, of a
  // sequence that was moved or forked; the sampler goes on as if it had sampled them (mirostat: see set_mirostat_mu).
  // Ids outside [0, vocab_size) in prompt and allowed_token_ids have no effect here.
  SequenceSampler(std::shared_ptr<const SamplerTables> tables, std::span<const TokenId> prompt, uint64_t seed,
                  std::span<const TokenId> sampled = {});
  // The same with tables of its own.
  SequenceSampler(std::shared_ptr<const SamplingParams> params, std::span<const TokenId> prompt, uint64_t seed,
                  int64_t vocab_size, const std::vector<TokenId>& eos_ids, std::span<const TokenId> sampled = {},
                  std::shared_ptr<const TokenMasks> masks = nullptr);

  // logits: [vocab_size], overwritten. Errors: internal when a logit is NaN or +inf or the model leaves none above
  // -inf, or when the constraint refuses too much of what it allowed; invalid_argument when the request's lists forbid
  // every token here. The sampler is then as before the call. guess: of the token, by its rule; nullptr: there is none.
  Result<SampledToken> sample(std::span<float> logits, SamplingScratch& scratch, const Guess* guess = nullptr);

  // For who has the logits elsewhere and does there what sample() does here: edits them, draws a token, and tells
  // take() what came out. In all of it `ahead` says: of the token after so many that are drawn already and not yet
  // taken.
  //
  // Whether that can be done, and how the next token is then drawn. It is one that sample() might have drawn, with the
  // same probability; with top_k it may be another for the same number.
  bool draws_plainly() const;
  std::optional<PlainChoice> plain_choice(int64_t ahead = 0) const;
  // Whether steps 2 to 6 do anything, and whether who has the logits can do it only when the token before has been
  // taken. Penalties need not wait for that: the list below may count the token itself.
  bool edits_logits(int64_t ahead = 0) const { return changes_logits(num_sampled_ + ahead); }
  bool edits_follow_tokens() const { return constraint_ || (tables_->bad_words && tables_->bad_words->reach() > 0); }
  // What these steps do in this step alone, as edits of single logits, no token twice, and a mask, which take effect as
  // ops/edit_logits.h says. Bans are in the mask where there is one, and where they are so many that a mask is smaller.
  // Adds to `edits`, and the mask's ceil(vocab_size / 32) words to `masks`. False: all tokens are allowed, no words
  // were added. REQUIRES: make_mask() since the last token, if wants_mask(); ahead is 0, if edits_follow_tokens().
  bool add_edits(int64_t ahead, std::vector<ops::LogitEdit>& edits, std::vector<uint32_t>& masks,
                 SamplingScratch& scratch) const;
  // The rest, what they do in every step to come: biases (where there are at most ops::kMostListedBiases; more are
  // among the edits) and the tokens that have been taken and are penalised. Whether there is any, the most entries that
  // it may be now, and the list itself, which replaces `list`.
  bool has_list() const { return tables_->penalises || !listed_biases().empty(); }
  size_t most_listed() const { return 1 + listed_biases().size() + seen_.most(); }
  void make_list(std::vector<ops::ListedToken>& list) const;
  // drawn: -1 for logits that sample() takes for an error; errors are sample()'s. False: the constraint refuses a token
  // that its mask allowed, and nothing has changed; sample() finds another.
  Result<bool> take(int32_t drawn, SamplingScratch& scratch);

  // For a beam search, which draws nothing: the `count` best tokens by their log-softmax (summed in
  // double) after steps 2 to 6, not normalised again, as transformers' logits processors do; falling,
  // equal ones by rising id, their rank among what is left; fewer if fewer are left. logits: as of
  // sample(). Errors: as of sample().
  Result<std::vector<TokenLogprob>> beam_candidates(std::span<float> logits, size_t count,
                                                    SamplingScratch& scratch) const;

  // Is there a mask to make? Then make_mask() makes the next token's ahead of sample() or beam_candidates(), which
  // would make it themselves; on any thread, while nobody else uses this.
  bool wants_mask() const { return static_cast<bool>(constraint_); }
  void make_mask();

  // Takes note of a token of the answer that was not sampled here: chosen by a beam search.
  void accept(TokenId token);

  // The one state that the tokens do not tell: Mirostat's bound, which depends on the logits that the
  // tokens were drawn from. A sampler made in the middle of an answer starts with twice tau, unless
  // it is given that of the sampler it continues.
  double mirostat_mu() const { return mirostat_mu_; }
  void set_mirostat_mu(double mu) { mirostat_mu_ = mu; }

  int64_t num_sampled() const { return num_sampled_; }
  const SamplingParams& params() const { return *params_; }

 private:
  struct Choice {
    TokenId id;
    double mirostat_mu;
  };

  bool in_vocabulary(TokenId id) const { return id >= 0 && id < vocab_size_; }
  bool has_top_k() const { return params_->top_k > 0 && params_->top_k < vocab_size_; }
  bool has_top_p() const { return params_->top_p < 1.0f; }
  bool has_typical_p() const { return params_->typical_p < 1.0f; }
  bool bans_at(int64_t index) const;
  bool excludes_top_choices() const;
  bool changes_logits(int64_t index) const;
  bool overwrites_logits() const;
  bool choosing_overwrites_logits() const;
  void note(TokenId token);
  void keep_allowed(std::span<float> logits, SamplingScratch& scratch) const;
  bool get_mask(std::vector<uint32_t>& mask) const;
  bool leaves_more_than_bans(std::span<const uint32_t> mask) const;
  bool add_mask(std::vector<uint32_t>& masks) const;
  std::span<const std::pair<TokenId, float>> listed_biases() const;
  void add_bans(std::span<const TokenId> banned, std::vector<ops::LogitEdit>& edits) const;
  void list_banned(int64_t index, bool may_go_on, SamplingScratch& scratch) const;
  bool lists_forbid_all(SamplingScratch& scratch) const;
  Status nothing_to_choose(SamplingScratch& scratch) const;
  bool keep_constrained(std::span<float> logits, SamplingScratch& scratch) const;
  void process(std::span<float> logits, SamplingScratch& scratch) const;
  void apply_penalties(std::span<float> logits) const;
  Result<Choice> choose(std::span<float> logits, SamplingScratch& scratch, const Guess* guess) const;
  Result<Choice> choose_accepted(std::span<float> logits, SamplingScratch& scratch, const Guess* guess);
  Weights weigh_top_k(std::span<const float> logits, float maximum, float inverse_temperature,
                      SamplingScratch& scratch) const;
  bool gather_nucleus(std::span<const float> weights, double total, SamplingScratch& scratch) const;
  Weights weigh_all(std::span<float> logits, float maximum, float inverse_temperature, SamplingScratch& scratch) const;

  std::shared_ptr<const SamplerTables> tables_;
  const SamplingParams* params_;  // the tables'
  uint64_t seed_;
  int64_t vocab_size_;
  TokenCounts seen_;  // kept only where something is penalised
  ConstraintState constraint_;
  enum class Mask : uint8_t { kNotMade, kAll, kSome };
  Mask made_ = Mask::kNotMade;  // of the next token
  std::vector<uint32_t> mask_;  // kSome: what constraint_ allows
  TokenHistory history_;  // of prompt and answer, where bad words or DRY look at it: what they may look at, or more
  double mirostat_mu_ = 0.0;
  int64_t num_sampled_ = 0;
};

}  // namespace quire::sampling
