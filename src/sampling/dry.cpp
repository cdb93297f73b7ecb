#include "sampling/dry.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "types/repetition.h"

namespace quire::sampling {

size_t DryPenalty::length_since_breaker(std::span<const TokenId> window) const {
  const DryBreakers* breakers = params_->dry_breakers.get();
  if (breakers == nullptr || breakers->empty()) return window.size();
  for (size_t place = window.size(); place-- > 0;) {
    const std::span<const TokenId> rest = window.subspan(place);
    if (const size_t longest = breakers->length_at(rest); longest > 0) return rest.size() - longest;
  }
  return window.size();
}

void DryPenalty::apply(std::span<const TokenId> history, std::span<float> logits, SamplingScratch& scratch) const {
  const auto allowed = static_cast<size_t>(params_->dry_allowed_length);
  const size_t last_n =
      params_->dry_penalty_last_n < 0 ? history.size() : static_cast<size_t>(params_->dry_penalty_last_n);
  const std::span<const TokenId> window = history.last(std::min(last_n, history.size()));
  if (window.size() <= allowed) return;
  const size_t limit = length_since_breaker(window);
  if (limit < allowed) return;

  matching_tails(window, scratch.lengths);
  std::vector<Candidate>& continuations = scratch.candidates;  // the length of the run, and the token behind it
  continuations.clear();
  for (size_t shift = 1; shift < window.size(); ++shift) {
    const size_t length = std::min(scratch.lengths[shift], limit);
    const TokenId next = window[window.size() - shift];
    if (length < allowed || next < 0 || static_cast<size_t>(next) >= logits.size()) continue;
    continuations.push_back({static_cast<float>(length), next});
  }
  std::sort(continuations.begin(), continuations.end(),
            [](const Candidate& a, const Candidate& b) { return a.id != b.id ? a.id < b.id : a.value > b.value; });

  constexpr double kMost = static_cast<double>(std::numeric_limits<float>::max()) / 4;  // the logit stays finite
  TokenId previous = kNoToken;
  for (const Candidate& continuation : continuations) {
    if (continuation.id == previous) continue;
    previous = continuation.id;
    if (params_->dry_breakers != nullptr && params_->dry_breakers->is_breaker(continuation.id)) continue;
    const double excess = static_cast<double>(continuation.value) - static_cast<double>(allowed);
    const double penalty =
        static_cast<double>(params_->dry_multiplier) * std::pow(static_cast<double>(params_->dry_base), excess);
    logits[static_cast<size_t>(continuation.id)] -= static_cast<float>(std::min(penalty, kMost));
  }
}

}  // namespace quire::sampling
