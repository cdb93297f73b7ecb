#include "types/dry_breakers.h"

#include <algorithm>
#include <utility>

namespace quire {

DryBreakers::DryBreakers(const std::vector<std::vector<TokenId>>& sequences) {
  add(sequences);
}

DryBreakers::DryBreakers(std::vector<uint64_t> tokens, const std::vector<std::vector<TokenId>>& sequences)
    : tokens_(std::move(tokens)) {
  add(sequences);
}

void DryBreakers::add(const std::vector<std::vector<TokenId>>& sequences) {
  for (const std::vector<TokenId>& sequence : sequences) {
    if (std::ranges::any_of(sequence, [](TokenId id) { return id < 0; })) continue;
    if (sequence.size() > 1) {
      const size_t size = std::min(sequence.size(), kMostTokens);
      longer_.emplace_back(sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(size));
    } else if (!sequence.empty()) {
      const auto token = static_cast<size_t>(sequence.front());
      if (token / 64 >= tokens_.size()) tokens_.resize(token / 64 + 1);
      tokens_[token / 64] |= uint64_t{1} << (token % 64);
    }
  }
  std::ranges::sort(longer_);
  const auto repeated = std::ranges::unique(longer_);
  longer_.erase(repeated.begin(), repeated.end());
}

size_t DryBreakers::length_at(std::span<const TokenId> text) const {
  if (text.empty()) return 0;
  size_t longest = is_breaker(text.front()) ? 1 : 0;
  const auto head = [](const std::vector<TokenId>& sequence) { return sequence.front(); };
  for (const std::vector<TokenId>& sequence : std::ranges::equal_range(longer_, text.front(), {}, head)) {
    if (sequence.size() <= longest || sequence.size() > text.size()) continue;
    if (std::ranges::equal(sequence, text.first(sequence.size()))) longest = sequence.size();
  }
  return longest;
}

int64_t DryBreakers::heap_bytes() const {
  size_t bytes = tokens_.capacity() * sizeof(uint64_t) + longer_.capacity() * sizeof(longer_.front());
  for (const std::vector<TokenId>& sequence : longer_) bytes += sequence.capacity() * sizeof(TokenId);
  return static_cast<int64_t>(bytes);
}

}  // namespace quire
