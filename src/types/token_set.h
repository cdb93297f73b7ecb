// Token ids that somebody looks things up in: immutable and shared, so that a copy costs no more than a pointer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "types/ids.h"

namespace quire {

class TokenSet {
 public:
  TokenSet() = default;
  // In any order, repeated or not: O(n log n), or O(n) for what rises already.
  TokenSet(std::vector<TokenId> ids) {  // NOLINT(google-explicit-constructor): a list of ids is one
    if (!std::ranges::is_sorted(ids)) std::ranges::sort(ids);
    const auto repeated = std::ranges::unique(ids);
    ids.erase(repeated.begin(), repeated.end());
    if (!ids.empty()) ids_ = std::make_shared<const std::vector<TokenId>>(std::move(ids));
  }
  TokenSet(std::initializer_list<TokenId> ids) : TokenSet(std::vector<TokenId>(ids)) {}

  // Rising, each once.
  std::span<const TokenId> ids() const { return ids_ ? std::span<const TokenId>(*ids_) : std::span<const TokenId>(); }
  auto begin() const { return ids().begin(); }
  auto end() const { return ids().end(); }
  size_t size() const { return ids().size(); }
  bool empty() const { return ids_ == nullptr; }
  bool contains(TokenId id) const { return std::ranges::binary_search(ids(), id); }  // O(log n)

  // What all copies hold together.
  int64_t heap_bytes() const { return ids_ ? static_cast<int64_t>(ids_->capacity() * sizeof(TokenId)) : 0; }

  friend bool operator==(const TokenSet& a, const TokenSet& b) { return std::ranges::equal(a.ids(), b.ids()); }

 private:
  std::shared_ptr<const std::vector<TokenId>> ids_;  // nullptr: empty
};

}  // namespace quire
