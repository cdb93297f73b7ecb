#include "sampling/bad_words.h"

#include <algorithm>

namespace quire::sampling {

BadWords::BadWords(const std::vector<std::vector<TokenId>>& sequences, int64_t vocab_size) {
  for (const std::vector<TokenId>& sequence : sequences) {
    if (sequence.empty() || sequence.back() < 0 || sequence.back() >= vocab_size) continue;
    words_.emplace_back(sequence);
    reach_ = std::max(reach_, sequence.size() - 1);
  }
}

void BadWords::add_banned(std::span<const TokenId> history, std::vector<TokenId>& banned) const {
  for (std::span<const TokenId> word : words_) {
    const std::span<const TokenId> before = word.first(word.size() - 1);
    if (before.size() > history.size()) continue;
    const std::span<const TokenId> tail = history.last(before.size());
    if (!std::equal(before.rbegin(), before.rend(), tail.rbegin())) continue;
    banned.push_back(word.back());
  }
}

}  // namespace quire::sampling
