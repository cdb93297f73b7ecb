// Chooses the next token of one sequence from a row of logits on the host.
//
// The order of the steps is that of vLLM's V1 sampler (vllm/v1/sample/sampler.py); steps that a
// request does not ask for cost nothing:
//  1. log-probabilities, if asked for, of the raw logits ("raw_logprobs");
//  2. a whitelist of token ids, 3. bad words: not among the parameters yet, they belong here;
//  4. min_tokens: while fewer tokens have been sampled, the stop ids are banned (-inf);
//  5. logit_bias: added, each clamped to [-100, 100]; several of one id add up;
//  6. penalties: repetition (tokens of prompt and output: positive logits divided by it, others multiplied), then
//     frequency (times the count in the output), then presence (tokens of the output);
//  7. temperature under 1e-5: the largest logit, the lowest id among equals, and no further step; else divide by it;
//  8. min_p: tokens less probable than min_p times the most probable are dropped;
//  9. top_k: the k most probable are kept, and those equal to the k-th;
// 10. top_p: of these, renormalised, the smallest set of the most probable (lower ids first among equals) whose mass
//     reaches top_p, at least one;
// 11. one of what is left is drawn by inverting the cumulative distribution at uniform(seed, index of the token).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "sampling/scratch.h"
#include "types/ids.h"
#include "types/sampling_params.h"
#include "types/step_plan.h"

namespace quire::sampling {

struct SampledToken {
  TokenId id = kNoToken;
  std::optional<PositionLogprobs> logprobs;  // if params.logprobs is set
};

// One a sequence, owned by the runner from the plan that adds the sequence to the one that retires
// it; preemption does not touch it. A draw depends on the seed and on how many tokens were sampled
// before, on nothing else: not on the batch, the chunking or the thread. Several samplers may work
// at once, each with a scratch of its thread.
class SequenceSampler {
 public:
  // stop_token_ids: banned until params->min_tokens. Ids outside [0, vocab_size) in prompt, stop
  // ids and logit_bias have no effect here. REQUIRES: params set; vocab_size >= 1.
  SequenceSampler(std::shared_ptr<const SamplingParams> params, std::span<const TokenId> prompt, uint64_t seed,
                  int64_t vocab_size, std::vector<TokenId> stop_token_ids);

  // logits: [vocab_size], overwritten. Errors: internal when a logit is NaN or +inf or when none is
  // left above -inf; the sampler is then as before the call.
  Result<SampledToken> sample(std::span<float> logits, SamplingScratch& scratch);

  int64_t num_sampled() const { return num_sampled_; }

 private:
  // How often a token that penalties touch has been seen.
  struct Seen {
    TokenId id;
    bool in_prompt;
    int32_t output_count;
  };

  bool in_vocabulary(TokenId id) const { return id >= 0 && id < vocab_size_; }
  bool has_top_k() const { return params_->top_k > 0 && params_->top_k < vocab_size_; }
  bool has_top_p() const { return params_->top_p < 1.0f; }
  bool bans_now() const;
  bool overwrites_logits() const;
  Seen& seen(TokenId id);
  void apply_bans_and_bias(std::span<float> logits) const;
  void apply_penalties(std::span<float> logits) const;
  Result<TokenId> choose(std::span<float> logits, SamplingScratch& scratch) const;
  TokenId draw_with_top_k(std::span<const float> logits, float maximum, double u, SamplingScratch& scratch) const;
  TokenId draw_from_all(std::span<float> logits, float maximum, double u, SamplingScratch& scratch) const;

  std::shared_ptr<const SamplingParams> params_;
  uint64_t seed_;
  int64_t vocab_size_;
  std::vector<TokenId> banned_until_min_tokens_;
  bool penalises_ = false;  // the two below are kept only then
  std::vector<Seen> seen_;
  std::unordered_map<TokenId, size_t> seen_index_;  // id -> place in seen_
  int64_t num_sampled_ = 0;
};

}  // namespace quire::sampling
