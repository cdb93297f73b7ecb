#include "sampling/sampler_tables.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace quire::sampling {
namespace {

// Those of one token add up, in the order in which they are given.
std::vector<std::pair<TokenId, float>> biases_of(const SamplingParams& params, int64_t vocab_size) {
  std::vector<std::pair<TokenId, float>> given;
  given.reserve(params.logit_bias.size());
  for (const auto& [id, bias] : params.logit_bias) {
    if (id >= 0 && id < vocab_size) given.emplace_back(id, std::clamp(bias, -100.0f, 100.0f));
  }
  std::ranges::stable_sort(given, {}, &std::pair<TokenId, float>::first);
  std::vector<std::pair<TokenId, float>> biases;
  for (const auto& [id, bias] : given) {
    if (biases.empty() || biases.back().first != id) biases.emplace_back(id, 0.0f);
    biases.back().second += bias;
  }
  return biases;
}

// Shares params' own set where that is all.
TokenSet banned_ids(const SamplingParams& params, std::span<const TokenId> eos_ids, int64_t vocab_size) {
  if (params.min_tokens <= 0) return {};
  const auto outside = [vocab_size](TokenId id) { return id < 0 || id >= vocab_size; };
  const TokenSet& stops = params.stop_token_ids;
  const bool stops_inside = stops.empty() || (!outside(stops.ids().front()) && !outside(stops.ids().back()));
  if (stops_inside && std::ranges::all_of(eos_ids, [&](TokenId id) { return outside(id) || stops.contains(id); })) {
    return stops;
  }
  std::vector<TokenId> ids(stops.begin(), stops.end());
  ids.insert(ids.end(), eos_ids.begin(), eos_ids.end());
  std::erase_if(ids, outside);
  return ids;
}

}  // namespace

SamplerTables::SamplerTables(std::shared_ptr<const SamplingParams> the_params, std::span<const TokenId> eos_ids,
                             int64_t vocabulary, std::shared_ptr<const TokenMasks> the_masks)
    : params(std::move(the_params)), masks(std::move(the_masks)), vocab_size(vocabulary) {
  QUIRE_CHECK(params != nullptr);
  QUIRE_CHECK(vocab_size >= 1 && vocab_size <= std::numeric_limits<TokenId>::max());
  const SamplingParams& p = *params;
  banned_until_min_tokens = banned_ids(p, eos_ids, vocab_size);
  biases = biases_of(p, vocab_size);
  penalises = p.repetition_penalty != 1.0f || p.frequency_penalty != 0.0f || p.presence_penalty != 0.0f;
  if (!p.bad_words_ids.empty()) bad_words.emplace(p.bad_words_ids, vocab_size);
  if (bad_words && bad_words->empty()) bad_words.reset();
  if (DryPenalty::is_on(p)) dry.emplace(p);
  if (bad_words) history_reach = bad_words->reach();
  if (dry) {
    constexpr size_t kAll = std::numeric_limits<size_t>::max();
    const size_t looked_at = p.dry_penalty_last_n < 0 ? kAll : static_cast<size_t>(p.dry_penalty_last_n);
    history_reach = std::max(history_reach, looked_at);
  }
}

int64_t SamplerTables::heap_bytes() const {
  const bool own_bans = banned_until_min_tokens.ids().data() != params->stop_token_ids.ids().data();
  return (own_bans ? banned_until_min_tokens.heap_bytes() : 0) +
         static_cast<int64_t>(biases.capacity() * sizeof(biases.front())) +
         (bad_words ? bad_words->heap_bytes() : int64_t{0});
}

}  // namespace quire::sampling
