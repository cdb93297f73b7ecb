#include "sampling/token_counts.h"

#include <algorithm>
#include <utility>

namespace quire::sampling {

TokenCounts::TokenCounts(std::span<const TokenId> prompt) {
  std::vector<TokenId> ids(prompt.begin(), prompt.end());
  std::ranges::sort(ids);
  const auto repeated = std::ranges::unique(ids);
  ids.erase(repeated.begin(), repeated.end());
  std::vector<Count> counts;
  counts.reserve(ids.size());
  for (const TokenId id : ids) counts.push_back({id, 0});
  if (!counts.empty()) counted_ = std::make_shared<const std::vector<Count>>(std::move(counts));
}

void TokenCounts::add(TokenId token) {
  const auto place = std::ranges::lower_bound(recent_, token, {}, &Count::id);
  if (place != recent_.end() && place->id == token) {
    ++place->output_count;
    return;
  }
  recent_.insert(place, {token, 1});
  if (recent_.size() < kMostRecent) return;
  std::vector<Count> counts;
  counts.reserve(shared().size() + recent_.size());
  for_each([&counts](const Count& count) { counts.push_back(count); });
  counted_ = std::make_shared<const std::vector<Count>>(std::move(counts));
  recent_.clear();
}

}  // namespace quire::sampling
