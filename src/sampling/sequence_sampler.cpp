#include "sampling/sequence_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/thread_clock.h"
#include "sampling/filters.h"
#include "sampling/logprobs.h"
#include "sampling/mirostat.h"
#include "sampling/random.h"
#include "sampling/row_math.h"

namespace quire::sampling {
namespace {

constexpr float kNever = ops::kBanned;  // the logit of what may not be said
constexpr float kGreedyTemperature = 1e-5f;

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

constexpr size_t kWordBits = 32;  // of a mask of tokens

bool allows(std::span<const uint32_t> mask, TokenId id) {
  return (mask[static_cast<size_t>(id) / kWordBits] >> (static_cast<size_t>(id) % kWordBits) & 1) != 0;
}

// Logits of at most a word's tokens.
void ban_unset(uint32_t word, std::span<float> logits) {
  if (word == std::numeric_limits<uint32_t>::max()) return;
  if (word == 0) {
    std::ranges::fill(logits, kNever);
    return;
  }
  for (size_t bit = 0; bit < logits.size(); ++bit) logits[bit] = (word >> bit & 1) != 0 ? logits[bit] : kNever;
}

}  // namespace

SequenceSampler::SequenceSampler(std::shared_ptr<const SamplerTables> tables, std::span<const TokenId> prompt,
                                 uint64_t seed, std::span<const TokenId> sampled)
    : tables_(std::move(tables)), params_(tables_->params.get()), seed_(seed), vocab_size_(tables_->vocab_size) {
  const SamplingParams& p = *params_;
  mirostat_mu_ = 2.0 * static_cast<double>(p.mirostat_tau);
  constraint_ = ConstraintState(tables_->masks.get());
  if (tables_->history_reach > 0) {
    history_ = TokenHistory(prompt.last(std::min(prompt.size(), tables_->history_reach)));
  }
  if (p.repetition_penalty != 1.0f) {
    std::vector<TokenId> known;
    std::ranges::copy_if(prompt, std::back_inserter(known), [this](TokenId id) { return in_vocabulary(id); });
    seen_ = TokenCounts(known);
  }
  for (TokenId id : sampled) accept(id);
}

SequenceSampler::SequenceSampler(std::shared_ptr<const SamplingParams> params, std::span<const TokenId> prompt,
                                 uint64_t seed, int64_t vocab_size, const std::vector<TokenId>& eos_ids,
                                 std::span<const TokenId> sampled, std::shared_ptr<const TokenMasks> masks)
    : SequenceSampler(std::make_shared<const SamplerTables>(std::move(params), eos_ids, vocab_size, std::move(masks)),
                      prompt, seed, sampled) {}

void SequenceSampler::accept(TokenId token) {
  if (constraint_) constraint_->accept(token);
  note(token);
}

void SequenceSampler::note(TokenId token) {
  made_ = Mask::kNotMade;
  if (tables_->penalises && in_vocabulary(token)) seen_.add(token);
  if (tables_->history_reach > 0) history_.push_back(token);
  ++num_sampled_;
}

bool SequenceSampler::bans_at(int64_t index) const {
  return index < params_->min_tokens && !tables_->banned_until_min_tokens.empty();
}

bool SequenceSampler::excludes_top_choices() const {
  return params_->xtc_probability > 0.0f && params_->xtc_threshold <= 0.5f &&
         uniform(seed_, static_cast<uint64_t>(num_sampled_), RandomStream::kExcludeTopChoices) <
             static_cast<double>(params_->xtc_probability);
}

bool SequenceSampler::changes_logits(int64_t index) const {
  const SamplingParams& p = *params_;
  return bans_at(index) || constraint_ || p.allowed_token_ids || tables_->bad_words || !p.logit_bias.empty() ||
         tables_->penalises;
}

bool SequenceSampler::overwrites_logits() const {
  return changes_logits(num_sampled_) || choosing_overwrites_logits();
}

bool SequenceSampler::choosing_overwrites_logits() const {
  const SamplingParams& p = *params_;
  const bool writes_weights = !p.greedy() && (!has_top_k() || p.mirostat != 0);
  return writes_weights || tables_->dry || p.top_n_sigma > 0.0f;
}

void SequenceSampler::keep_allowed(std::span<float> logits, SamplingScratch& scratch) const {
  scratch.allowed_logits.clear();
  for (TokenId id : *params_->allowed_token_ids) {
    scratch.allowed_logits.push_back(in_vocabulary(id) ? logits[static_cast<size_t>(id)] : 0.0f);
  }
  std::fill(logits.begin(), logits.end(), kNever);
  size_t place = 0;
  for (const TokenId id : *params_->allowed_token_ids) {
    const float logit = scratch.allowed_logits[place++];
    if (in_vocabulary(id)) logits[static_cast<size_t>(id)] = logit;
  }
}

void SequenceSampler::make_mask() {
  if (constraint_) made_ = get_mask(mask_) ? Mask::kSome : Mask::kAll;
}

// False: every token may follow.
bool SequenceSampler::get_mask(std::vector<uint32_t>& mask) const {
  if (made_ == Mask::kAll) return false;
  if (made_ == Mask::kSome) {
    mask = mask_;
    return true;
  }
  mask.resize((static_cast<size_t>(vocab_size_) + kWordBits - 1) / kWordBits);
  return constraint_->allowed(mask);
}

// False: of the tokens that may follow all are among those that are banned until min_tokens.
bool SequenceSampler::keep_constrained(std::span<float> logits, SamplingScratch& scratch) const {
  const ThreadTimeSpan span(scratch.constraint_seconds);
  std::vector<uint32_t>& mask = scratch.allowed_mask;
  if (!get_mask(mask)) return true;
  for (size_t word = 0; word < mask.size(); ++word) {
    const size_t first = word * kWordBits;
    ban_unset(mask[word], logits.subspan(first, std::min(kWordBits, logits.size() - first)));
  }
  return leaves_more_than_bans(mask);
}

// Whether a token may follow that is not banned until min_tokens.
bool SequenceSampler::leaves_more_than_bans(std::span<const uint32_t> mask) const {
  size_t count = 0;
  for (const uint32_t word : mask) {
    count += static_cast<size_t>(std::popcount(word));
    if (count > tables_->banned_until_min_tokens.size()) return true;
  }
  for (const TokenId id : tables_->banned_until_min_tokens) count -= allows(mask, id) ? 1 : 0;
  return count > 0;
}

// Steps 3 and 4: scratch.banned becomes their tokens, rising, each once.
void SequenceSampler::list_banned(int64_t index, bool may_go_on, SamplingScratch& scratch) const {
  std::vector<TokenId>& banned = scratch.banned;
  banned.clear();
  if (tables_->bad_words) {
    history_.copy_last(tables_->bad_words->reach(), scratch.history);
    tables_->bad_words->add_banned(scratch.history, banned);
    std::ranges::sort(banned);
  }
  if (bans_at(index) && may_go_on) {
    const auto words = static_cast<std::ptrdiff_t>(banned.size());
    const TokenSet& ends = tables_->banned_until_min_tokens;
    banned.insert(banned.end(), ends.begin(), ends.end());
    std::inplace_merge(banned.begin(), banned.begin() + words, banned.end());
  }
  const auto repeated = std::ranges::unique(banned);
  banned.erase(repeated.begin(), repeated.end());
}

// Whether steps 2 to 4 leave no token, though the constraint of the answer does: then it is the request that cannot be
// met.
bool SequenceSampler::lists_forbid_all(SamplingScratch& scratch) const {
  std::vector<uint32_t> mask;
  const bool constrained = constraint_ && get_mask(mask);
  const auto of_form = [&](TokenId id) { return !constrained || allows(mask, id); };
  list_banned(num_sampled_, !constrained || leaves_more_than_bans(mask), scratch);
  bool form_leaves_any = false;
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (!of_form(id)) continue;
    form_leaves_any = true;
    if (params_->allowed_token_ids && !params_->allowed_token_ids->contains(id)) continue;
    if (!std::ranges::binary_search(scratch.banned, id)) return false;
  }
  return form_leaves_any;
}

// The error of a row that no token can be drawn from.
Status SequenceSampler::nothing_to_choose(SamplingScratch& scratch) const {
  if (!changes_logits(num_sampled_) || !lists_forbid_all(scratch)) return not_finite();
  return invalid_argument(
             "no token could be chosen behind {} of the answer: allowed_token_ids, bad_words and, before "
             "min_tokens={}, "
             "the ids that end an answer forbid every one. Ask for less at once.",
             num_sampled_, params_->min_tokens)
      .with_param(params_->allowed_token_ids ? "allowed_token_ids" : "bad_words");
}

// Steps 2 to 6.
void SequenceSampler::process(std::span<float> logits, SamplingScratch& scratch) const {
  const bool may_go_on = !constraint_ || keep_constrained(logits, scratch);
  if (params_->allowed_token_ids) keep_allowed(logits, scratch);
  list_banned(num_sampled_, may_go_on, scratch);
  for (const TokenId id : scratch.banned) logits[static_cast<size_t>(id)] = kNever;
  for (const auto& [id, bias] : tables_->biases) logits[static_cast<size_t>(id)] += bias;
  if (tables_->penalises) apply_penalties(logits);
}

void SequenceSampler::apply_penalties(std::span<float> logits) const {
  const float repetition = params_->repetition_penalty;
  const float frequency = params_->frequency_penalty;
  const float presence = params_->presence_penalty;
  seen_.for_each([&](const TokenCounts::Count& token) {
    float& logit = logits[static_cast<size_t>(token.id)];
    const float penalised = logit > 0.0f ? logit / repetition : logit * repetition;
    // Divided by next to nothing a number must stay one.
    logit = std::isfinite(logit) ? std::min(penalised, std::numeric_limits<float>::max()) : penalised;
    if (token.output_count > 0) {
      logit -= frequency * static_cast<float>(token.output_count);
      logit -= presence;
    }
  });
}

// Steps 7 to 16 on the logits after penalties.
Result<SequenceSampler::Choice> SequenceSampler::choose(std::span<float> logits, SamplingScratch& scratch,
                                                        const Guess* guess) const {
  const SamplingParams& p = *params_;
  if (tables_->dry) {
    history_.copy_last(tables_->history_reach, scratch.history);
    tables_->dry->apply(scratch.history, logits, scratch);
  }
  const RowMaximum maximum = row_maximum(logits);
  if (!maximum.finite) return nothing_to_choose(scratch);
  if (p.greedy()) return Choice{static_cast<TokenId>(first_equal(logits, maximum.value)), mirostat_mu_};
  const double u = uniform(seed_, static_cast<uint64_t>(num_sampled_));
  if (p.mirostat != 0) {
    const MirostatSettings settings{p.mirostat, 1.0f / p.temperature, p.mirostat_tau, p.mirostat_eta};
    const MirostatDraw drawn = draw_with_mirostat(logits, maximum.value, settings, mirostat_mu_, u, scratch);
    return Choice{drawn.id, drawn.mu};
  }
  if (p.top_n_sigma > 0.0f) keep_top_n_sigma(logits, maximum.value, p.top_n_sigma);
  float temperature = p.temperature;
  if (p.dynatemp_range > 0.0f) {
    temperature = dynamic_temperature(logits, maximum.value, temperature, p.dynatemp_range, p.dynatemp_exponent);
    if (temperature < kGreedyTemperature) {
      return Choice{static_cast<TokenId>(first_equal(logits, maximum.value)), mirostat_mu_};
    }
  }
  const float inverse_temperature = 1.0f / temperature;
  const Weights weights = has_top_k() ? weigh_top_k(logits, maximum.value, inverse_temperature, scratch)
                                      : weigh_all(logits, maximum.value, inverse_temperature, scratch);
  const bool draws_twice = guess != nullptr && !guess->drawn_from.empty();
  const double accept =
      draws_twice ? uniform(seed_, static_cast<uint64_t>(num_sampled_), RandomStream::kAcceptance) : 0;
  return Choice{choose_by_weights(weights, u, accept, guess, scratch), mirostat_mu_};
}

Weights SequenceSampler::weigh_top_k(std::span<const float> logits, float maximum, float inverse_temperature,
                                     SamplingScratch& scratch) const {
  const auto k = static_cast<size_t>(params_->top_k);
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
  scratch.shifted.clear();
  for (Candidate& candidate : candidates) {
    const float shifted = (candidate.value - maximum) * inverse_temperature;
    candidate.value = exp_nonpositive(shifted);
    if (candidate.value < params_->min_p) break;
    if (has_typical_p()) scratch.shifted.push_back(shifted);
    total += static_cast<double>(candidate.value);
    ++kept;
  }
  candidates.resize(kept);
  if (has_typical_p()) total = keep_typical(candidates, scratch.shifted, total, params_->typical_p, scratch);
  if (has_top_p()) total = keep_nucleus(candidates, total, params_->top_p);
  if (excludes_top_choices()) total = exclude_top_choices(candidates, total, params_->xtc_threshold);
  return {.row = {}, .total = total};
}

// Puts the heaviest tokens in falling order into scratch.candidates, if a few of them hold the whole nucleus.
bool SequenceSampler::gather_nucleus(std::span<const float> weights, double total, SamplingScratch& scratch) const {
  constexpr float kLeast = 0x1p-12f;  // of the heaviest token's weight before the filters, 1
  constexpr size_t kMost = 1024;
  std::vector<Candidate>& candidates = scratch.candidates;
  if (!gather_at_least(weights, kLeast, kMost, candidates)) return false;
  double mass = 0.0;
  for (const Candidate& candidate : candidates) mass += static_cast<double>(candidate.value);
  if (mass < static_cast<double>(params_->top_p) * total) return false;
  std::sort(candidates.begin(), candidates.end(), more_likely);
  return true;
}

Weights SequenceSampler::weigh_all(std::span<float> logits, float maximum, float inverse_temperature,
                                   SamplingScratch& scratch) const {
  if (has_typical_p()) {
    scratch.shifted.resize(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) scratch.shifted[i] = (logits[i] - maximum) * inverse_temperature;
  }
  const std::span<float> weights = logits;
  double total = replace_by_weights(weights, maximum, inverse_temperature, params_->min_p, scratch.block_sums);
  if (has_typical_p()) total = keep_typical(weights, scratch.shifted, total, params_->typical_p, scratch);
  if (has_top_p() && gather_nucleus(weights, total, scratch)) {
    total = keep_nucleus(scratch.candidates, total, params_->top_p);
    if (excludes_top_choices()) total = exclude_top_choices(scratch.candidates, total, params_->xtc_threshold);
    std::sort(scratch.candidates.begin(), scratch.candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    return {.row = {}, .total = total};
  }
  if (has_top_p()) {
    const Candidate cut = nucleus_cut(weights, total, params_->top_p, scratch);
    total = drop_less_likely(weights, cut, scratch.block_sums);
  }
  if (excludes_top_choices()) total = exclude_top_choices(weights, total, params_->xtc_threshold, scratch);
  return {.row = weights, .total = total};
}

// A mask may allow a little too much (TokenMasks::State::allowed); what is then not accepted is banned like the
// others, and the choice made again with the same number.
Result<SequenceSampler::Choice> SequenceSampler::choose_accepted(std::span<float> logits, SamplingScratch& scratch,
                                                                 const Guess* guess) {
  if (!constraint_) return choose(logits, scratch, guess);
  QUIRE_RETURN_IF_ERROR(constraint_->trouble());
  constexpr int kMostRefused = 64;
  const bool overwritten = choosing_overwrites_logits();
  if (overwritten) {
    const ThreadTimeSpan span(scratch.constraint_seconds);
    scratch.constrained_logits.assign(logits.begin(), logits.end());
  }
  const auto accepts = [&](TokenId id) {
    const ThreadTimeSpan span(scratch.constraint_seconds);
    return constraint_->accept(id);
  };
  const std::span<float> left = overwritten ? std::span(scratch.constrained_logits) : logits;
  for (int refused = 0; refused < kMostRefused; ++refused) {
    QUIRE_ASSIGN_OR_RETURN(const Choice choice, choose(logits, scratch, guess));
    if (accepts(choice.id)) return choice;
    QUIRE_RETURN_IF_ERROR(constraint_->trouble());
    left[static_cast<size_t>(choice.id)] = kNever;
    if (overwritten) std::ranges::copy(left, logits.begin());
  }
  return internal_error("{} tokens that were allowed break the constraint of the answer", kMostRefused);
}

Result<SampledToken> SequenceSampler::sample(std::span<float> logits, SamplingScratch& scratch, const Guess* guess) {
  QUIRE_CHECK(static_cast<int64_t>(logits.size()) == vocab_size_);
  std::span<const float> raw = logits;
  if (params_->logprobs && overwrites_logits()) {
    scratch.raw_logits.assign(logits.begin(), logits.end());
    raw = scratch.raw_logits;
  }
  process(logits, scratch);
  QUIRE_ASSIGN_OR_RETURN(const Choice choice, choose_accepted(logits, scratch, guess));
  SampledToken sampled;
  sampled.id = choice.id;
  if (params_->logprobs) {
    QUIRE_ASSIGN_OR_RETURN(sampled.logprobs, position_logprobs(raw, sampled.id, *params_->logprobs));
  }
  note(sampled.id);
  mirostat_mu_ = choice.mirostat_mu;
  return sampled;
}

bool SequenceSampler::draws_plainly() const {
  const SamplingParams& p = *params_;
  if (tables_->dry) return false;
  return p.greedy() || (p.mirostat == 0 && p.top_n_sigma <= 0.0f && p.dynatemp_range <= 0.0f && !has_typical_p() &&
                        p.xtc_probability <= 0.0f);
}

std::optional<PlainChoice> SequenceSampler::plain_choice(int64_t ahead) const {
  const SamplingParams& p = *params_;
  if (!draws_plainly()) return std::nullopt;
  if (p.greedy()) return PlainChoice{};
  return PlainChoice{p.temperature, p.min_p, has_top_k() ? p.top_k : 0, p.top_p,
                     uniform(seed_, static_cast<uint64_t>(num_sampled_ + ahead))};
}

// Step 2. False: nothing was added.
bool SequenceSampler::add_mask(std::vector<uint32_t>& masks) const {
  QUIRE_CHECK(!constraint_ || made_ != Mask::kNotMade);
  const bool constrained = made_ == Mask::kSome;
  if (!constrained && !params_->allowed_token_ids) return false;
  const size_t begin = masks.size();
  masks.resize(begin + (static_cast<size_t>(vocab_size_) + kWordBits - 1) / kWordBits);
  const std::span<uint32_t> mask = std::span(masks).subspan(begin);
  if (!params_->allowed_token_ids) {
    std::ranges::copy(mask_, mask.begin());
    return true;
  }
  for (const TokenId id : *params_->allowed_token_ids) {
    if (!in_vocabulary(id) || (constrained && !allows(mask_, id))) continue;
    mask[static_cast<size_t>(id) / kWordBits] |= uint32_t{1} << (static_cast<size_t>(id) % kWordBits);
  }
  return true;
}

std::span<const std::pair<TokenId, float>> SequenceSampler::listed_biases() const {
  if (tables_->biases.size() > static_cast<size_t>(ops::kMostListedBiases)) return {};
  return tables_->biases;
}

// Bans, and biases that are not listed.
void SequenceSampler::add_bans(std::span<const TokenId> banned, std::vector<ops::LogitEdit>& edits) const {
  // Both rise; a ban makes a bias of no effect.
  std::span<const std::pair<TokenId, float>> biases;
  if (listed_biases().empty()) biases = tables_->biases;
  size_t bias = 0;
  const auto add_bias = [&] { edits.push_back({.token = biases[bias].first, .bias = biases[bias].second}), ++bias; };
  for (const TokenId token : banned) {
    while (bias < biases.size() && biases[bias].first < token) add_bias();
    if (bias < biases.size() && biases[bias].first == token) ++bias;
    edits.push_back({.token = token, .bias = ops::kBanned});
  }
  while (bias < biases.size()) add_bias();
}

bool SequenceSampler::add_edits(int64_t ahead, std::vector<ops::LogitEdit>& edits, std::vector<uint32_t>& masks,
                                SamplingScratch& scratch) const {
  QUIRE_CHECK(ahead == 0 || !edits_follow_tokens());
  const size_t num_words = (static_cast<size_t>(vocab_size_) + kWordBits - 1) / kWordBits;
  bool masked = add_mask(masks);
  const bool may_go_on = made_ != Mask::kSome || leaves_more_than_bans(mask_);
  list_banned(num_sampled_ + ahead, may_go_on, scratch);
  std::span<const TokenId> banned = scratch.banned;
  if (!masked && banned.size() * sizeof(ops::LogitEdit) > num_words * sizeof(uint32_t)) {
    masks.resize(masks.size() + num_words, std::numeric_limits<uint32_t>::max());
    masked = true;
  }
  if (masked) {
    const std::span<uint32_t> mask = std::span(masks).last(num_words);
    for (const TokenId id : banned) {
      mask[static_cast<size_t>(id) / kWordBits] &= ~(uint32_t{1} << (static_cast<size_t>(id) % kWordBits));
    }
    banned = {};
  }
  add_bans(banned, edits);
  return masked;
}

void SequenceSampler::make_list(std::vector<ops::ListedToken>& list) const {
  const auto biases = listed_biases();
  list.assign(1, {});
  for (const auto& [token, bias] : biases) list.push_back({.token = token, .value = std::bit_cast<int32_t>(bias)});
  seen_.for_each([&](const TokenCounts::Count& one) { list.push_back({.token = one.id, .value = one.output_count}); });
  list.front() = {.token = static_cast<int32_t>(list.size() - biases.size()) - 1,
                  .value = static_cast<int32_t>(biases.size())};
}

Result<bool> SequenceSampler::take(int32_t drawn, SamplingScratch& scratch) {
  if (constraint_) QUIRE_RETURN_IF_ERROR(constraint_->trouble());
  if (drawn < 0) return nothing_to_choose(scratch);
  if (constraint_) {
    const ThreadTimeSpan span(scratch.constraint_seconds);
    if (!constraint_->accept(drawn)) {
      QUIRE_RETURN_IF_ERROR(constraint_->trouble());
      return false;
    }
  }
  note(drawn);
  return true;
}

Result<std::vector<TokenLogprob>> SequenceSampler::beam_candidates(std::span<float> logits, size_t count,
                                                                   SamplingScratch& scratch) const {
  QUIRE_CHECK(static_cast<int64_t>(logits.size()) == vocab_size_);
  const RowMaximum maximum = row_maximum(logits);
  if (!maximum.finite) return not_finite();
  const double log_sum = static_cast<double>(maximum.value) + std::log(sum_exp(logits, maximum.value));
  for (float& logit : logits) logit = static_cast<float>(static_cast<double>(logit) - log_sum);
  process(logits, scratch);
  if (!row_maximum(logits).finite) return nothing_to_choose(scratch);
  select_largest(logits, std::min(count, logits.size()), scratch.candidates);
  std::vector<TokenLogprob> candidates;
  candidates.reserve(scratch.candidates.size());
  for (const Candidate& candidate : scratch.candidates) {
    const bool tied = !candidates.empty() && candidates.back().logprob == candidate.value;
    const int32_t rank = tied ? candidates.back().rank : static_cast<int32_t>(candidates.size()) + 1;
    candidates.push_back({candidate.id, candidate.value, rank});
  }
  return candidates;
}

}  // namespace quire::sampling
