// The tokens of a tokenizer by id and by spelling.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "types/ids.h"

namespace quire::text {

inline constexpr TokenId kMaxTokenId = (1 << 24) - 1;  // far above any vocabulary; bounds the tables

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenMap = std::unordered_map<std::string, TokenId, StringHash, std::equal_to<>>;

class TokenTable {
 public:
  void reserve(size_t count);
  // `field` names the place in the file for errors. Errors: invalid_argument for an id below 0 or above kMaxTokenId, an
  // id that another token has, a spelling that another id has.
  Status add(std::string_view token, int64_t id, std::string_view field);
  // Errors: invalid_argument when the ids are so sparse that tables by id would be mostly holes.
  Status check_density(std::string_view field) const;

  // Highest id + 1.
  int64_t size() const { return static_cast<int64_t>(by_id_.size()); }
  int64_t count() const { return static_cast<int64_t>(by_token_.size()); }
  // nullptr: no token has this id.
  const std::string* find(TokenId id) const {
    if (id < 0 || static_cast<size_t>(id) >= by_id_.size()) return nullptr;
    return by_id_[static_cast<size_t>(id)];
  }
  std::optional<TokenId> find(std::string_view token) const {
    const auto entry = by_token_.find(token);
    if (entry == by_token_.end()) return std::nullopt;
    return entry->second;
  }

 private:
  TokenMap by_token_;
  std::vector<const std::string*> by_id_;  // keys of by_token_, whose nodes never move
};

}  // namespace quire::text
