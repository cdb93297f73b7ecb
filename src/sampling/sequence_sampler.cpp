#include "sampling/sequence_sampler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "sampling/logprobs.h"
#include "sampling/random.h"
#include "sampling/row_math.h"

namespace quire::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Cuts candidates, in falling order of weight, to the fewest that reach top_p of `total`. Returns
// their weight.
double keep_nucleus(std::vector<Candidate>& candidates, double total, float top_p) {
  const double wanted = static_cast<double>(top_p) * total;
  double mass = 0.0;
  size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || mass < wanted)) {
    mass += static_cast<double>(candidates[kept++].value);
  }
  candidates.resize(kept);
  return mass;
}

// The first candidate at which the running sum of weights exceeds u * total.
TokenId draw(const std::vector<Candidate>& candidates, double total, double u) {
  const double target = u * total;
  double sum = 0.0;
  for (const Candidate& candidate : candidates) {
    sum += static_cast<double>(candidate.value);
    if (sum > target) return candidate.id;
  }
  return candidates.back().id;  // rounding: the sum fell short of the total
}

// The same over a whole row of weights; block_sums spare most of the walk.
TokenId draw(std::span<const float> weights, const std::vector<double>& block_sums, double total, double u) {
  const double target = u * total;
  double before = 0.0;
  size_t block = 0;
  // Rounding may leave the target beyond the last block with any weight: then it is that one.
  size_t last_with_weight = 0;
  for (; block < block_sums.size(); ++block) {
    if (block_sums[block] > 0.0) last_with_weight = block;
    if (before + block_sums[block] > target) break;
    before += block_sums[block];
  }
  if (block == block_sums.size()) {
    block = last_with_weight;
    before -= block_sums[block];
  }
  const size_t begin = block * kWeightBlock;
  const size_t end = std::min(begin + kWeightBlock, weights.size());
  size_t last_possible = begin;
  double sum = before;
  for (size_t i = begin; i < end; ++i) {
    if (weights[i] == 0.0f) continue;
    last_possible = i;
    sum += static_cast<double>(weights[i]);
    if (sum > target) break;
  }
  return static_cast<TokenId>(last_possible);
}

}  // namespace

SequenceSampler::SequenceSampler(std::shared_ptr<const SamplingParams> params, std::span<const TokenId> prompt,
                                 uint64_t seed, int64_t vocab_size, std::vector<TokenId> stop_token_ids)
    : params_(std::move(params)),
      seed_(seed),
      vocab_size_(vocab_size),
      banned_until_min_tokens_(std::move(stop_token_ids)) {
  QUIRE_CHECK(params_ != nullptr);
  QUIRE_CHECK(vocab_size >= 1 && vocab_size <= std::numeric_limits<TokenId>::max());
  std::erase_if(banned_until_min_tokens_, [this](TokenId id) { return !in_vocabulary(id); });
  const SamplingParams& p = *params_;
  penalises_ = p.repetition_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f;
  if (p.repetition_penalty == 1.0f) return;
  for (TokenId id : prompt) {
    if (in_vocabulary(id)) seen(id).in_prompt = true;
  }
}

SequenceSampler::Seen& SequenceSampler::seen(TokenId id) {
  const auto [place, is_new] = seen_index_.try_emplace(id, seen_.size());
  if (is_new) seen_.push_back({id, false, 0});
  return seen_[place->second];
}

bool SequenceSampler::bans_now() const {
  return num_sampled_ < params_->min_tokens && !banned_until_min_tokens_.empty();
}

bool SequenceSampler::overwrites_logits() const {
  const bool writes_weights = !params_->greedy() && !has_top_k();
  return bans_now() || !params_->logit_bias.empty() || penalises_ || writes_weights;
}

void SequenceSampler::apply_bans_and_bias(std::span<float> logits) const {
  if (bans_now()) {
    for (TokenId id : banned_until_min_tokens_) logits[static_cast<size_t>(id)] = -kInfinity;
  }
  for (const auto& [id, bias] : params_->logit_bias) {
    if (in_vocabulary(id)) logits[static_cast<size_t>(id)] += std::clamp(bias, -100.0f, 100.0f);
  }
}

void SequenceSampler::apply_penalties(std::span<float> logits) const {
  const float repetition = params_->repetition_penalty;
  const float frequency = params_->frequency_penalty;
  const float presence = params_->presence_penalty;
  for (const Seen& token : seen_) {
    float& logit = logits[static_cast<size_t>(token.id)];
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (token.output_count > 0) {
      logit -= frequency * static_cast<float>(token.output_count);
      logit -= presence;
    }
  }
}

// Steps 7 to 11 on the logits after bias and penalties.
Result<TokenId> SequenceSampler::choose(std::span<float> logits, SamplingScratch& scratch) const {
  const RowMaximum maximum = row_maximum(logits);
  if (!maximum.finite) return not_finite();
  if (params_->greedy()) return static_cast<TokenId>(first_equal(logits, maximum.value));
  const double u = uniform(seed_, static_cast<uint64_t>(num_sampled_));
  if (has_top_k()) return draw_with_top_k(logits, maximum.value, u, scratch);
  return draw_from_all(logits, maximum.value, u, scratch);
}

TokenId SequenceSampler::draw_with_top_k(std::span<const float> logits, float maximum, double u,
                                         SamplingScratch& scratch) const {
  const auto k = static_cast<size_t>(params_->top_k);
  const float inverse_temperature = 1.0f / params_->temperature;
  std::vector<Candidate>& candidates = scratch.candidates;
  // min_p may come after top_k here: it drops from below, so it does not change which are the k most likely of the
  // rest.
  select_largest(logits, k, candidates);
  if (candidates.size() == k) {
    const Candidate last = candidates.back();
    append_equal_after(logits, last.value, last.id, candidates);
  }
  double total = 0.0;
  size_t kept = 0;
  for (Candidate& candidate : candidates) {
    candidate.value = exp_nonpositive((candidate.value - maximum) * inverse_temperature);
    if (candidate.value < params_->min_p) break;
    total += static_cast<double>(candidate.value);
    ++kept;
  }
  candidates.resize(kept);
  if (has_top_p()) total = keep_nucleus(candidates, total, params_->top_p);
  return draw(candidates, total, u);
}

TokenId SequenceSampler::draw_from_all(std::span<float> logits, float maximum, double u,
                                       SamplingScratch& scratch) const {
  const std::span<float> weights = logits;
  double total = replace_by_weights(weights, maximum, 1.0f / params_->temperature, params_->min_p, scratch.block_sums);
  if (has_top_p()) {
    const Candidate cut = nucleus_cut(weights, total, params_->top_p, scratch);
    total = drop_less_likely(weights, cut, scratch.block_sums);
  }
  return draw(weights, scratch.block_sums, total, u);
}

Result<SampledToken> SequenceSampler::sample(std::span<float> logits, SamplingScratch& scratch) {
  QUIRE_CHECK(static_cast<int64_t>(logits.size()) == vocab_size_);
  std::span<const float> raw = logits;
  if (params_->logprobs && overwrites_logits()) {
    scratch.raw_logits.assign(logits.begin(), logits.end());
    raw = scratch.raw_logits;
  }
  apply_bans_and_bias(logits);
  if (penalises_) apply_penalties(logits);
  SampledToken sampled;
  QUIRE_ASSIGN_OR_RETURN(sampled.id, choose(logits, scratch));
  if (params_->logprobs) {
    QUIRE_ASSIGN_OR_RETURN(sampled.logprobs, position_logprobs(raw, sampled.id, *params_->logprobs));
  }
  if (penalises_) ++seen(sampled.id).output_count;
  ++num_sampled_;
  return sampled;
}

}  // namespace quire::sampling
