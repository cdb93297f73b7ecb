// The tokens of a tokenizer by id and by spelling.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hashing.h"
#include "base/status.h"
#include "types/ids.h"

namespace quire::text {

inline constexpr TokenId kMaxTokenId = (1 << 24) - 1;  // far above any vocabulary; bounds the tables

// Numbers from 0 on, found by the hash of a spelling that lies elsewhere. Open addressing in 8 bytes a slot: a
// vocabulary of hundreds of thousands is loaded without an allocation for each token, and mostly stays in the cache.
class SpellingIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static uint32_t hash_of(std::string_view spelling) {
    return static_cast<uint32_t>(hash_bytes(spelling.data(), spelling.size(), 0));
  }

  void reserve(size_t count);
  // The number under this hash for which is_wanted(number); kNone where there is none.
  template <typename IsWanted>
  uint32_t find(uint32_t hash, const IsWanted& is_wanted) const {
    for (size_t slot = hash & mask_;; slot = (slot + 1) & mask_) {
      const Slot& here = slots_[slot];
      if (here.number == kNone || (here.hash == hash && is_wanted(here.number))) return here.number;
    }
  }
  // Numbers come one after the other, from 0. REQUIRES: find() said kNone.
  void add(uint32_t hash);

 private:
  struct Slot {
    uint32_t hash = 0;
    uint32_t number = kNone;
  };
  void resize(size_t slots);
  void place(Slot wanted);

  std::vector<Slot> slots_ = std::vector<Slot>(2);  // at most half of them taken
  size_t mask_ = 1;
  uint32_t count_ = 0;
};

// Ids by spelling, with the spellings in one piece of memory.
class SpellingMap {
 public:
  static constexpr uint32_t kNone = SpellingIndex::kNone;

  void reserve(size_t count);
  // False, and nothing changes, where the spelling is there already.
  bool add(std::string_view spelling, TokenId id);
  // The number of the entry, in the order of adding; kNone.
  uint32_t find(std::string_view spelling) const {
    return index_.find(SpellingIndex::hash_of(spelling), [&](uint32_t number) {
      const Entry& entry = entries_[number];
      return std::string_view(bytes_).substr(entry.begin, entry.length) == spelling;
    });
  }
  TokenId id(uint32_t number) const { return entries_[number].id; }
  // kNoToken: no such spelling.
  TokenId id_of(std::string_view spelling) const {
    const uint32_t number = find(spelling);
    return number == kNone ? kNoToken : id(number);
  }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    size_t begin = 0;  // in bytes_
    uint32_t length = 0;
    TokenId id = kNoToken;
  };
  SpellingIndex index_;
  std::vector<Entry> entries_;
  std::string bytes_;
};

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
  int64_t count() const { return static_cast<int64_t>(tokens_.size()); }
  // nullptr: no token has this id. The spelling stays where it is until a token is added.
  const std::string* find(TokenId id) const {
    if (id < 0 || static_cast<size_t>(id) >= by_id_.size()) return nullptr;
    const uint32_t number = by_id_[static_cast<size_t>(id)];
    return number == SpellingIndex::kNone ? nullptr : &tokens_[number].spelling;
  }
  std::optional<TokenId> find(std::string_view token) const {
    const uint32_t number = find_number(token, SpellingIndex::hash_of(token));
    if (number == SpellingIndex::kNone) return std::nullopt;
    return tokens_[number].id;
  }

 private:
  struct Token {
    std::string spelling;
    TokenId id = kNoToken;
  };
  uint32_t find_number(std::string_view token, uint32_t hash) const {
    return index_.find(hash, [&](uint32_t number) { return tokens_[number].spelling == token; });
  }

  std::vector<Token> tokens_;    // as they were added
  std::vector<uint32_t> by_id_;  // places in tokens_
  SpellingIndex index_;
};

// Of a table by id, which may be shorter than the vocabulary.
inline bool is_hidden(const std::vector<bool>& hidden, TokenId id) {
  return static_cast<size_t>(id) < hidden.size() && hidden[static_cast<size_t>(id)];
}

}  // namespace quire::text
