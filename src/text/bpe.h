// Byte pair encoding (Sennrich et al., 2016): a piece of text begins as its characters, and the adjacent pair with the
// best rank is merged until no pair has one.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/tokenizer_model.h"
#include "text/tokenizer_vocab.h"

namespace quire::text {

// What two adjacent symbols become. An open-addressing table: one probe, mostly, of 16 bytes.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = 0;  // lower merges first
    TokenId merged = kNoToken;
  };
  static constexpr uint32_t kNoRank = UINT32_MAX;

  void reserve(size_t count);
  // The first rank given to a pair stays. REQUIRES: reserve() for at least this many.
  void add(TokenId left, TokenId right, Merge merge);
  // rank is kNoRank where the pair does not merge.
  Merge find(TokenId left, TokenId right) const {
    const uint64_t key = key_of(left, right);
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kEmpty) return {kNoRank, kNoToken};
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  static uint64_t key_of(TokenId left, TokenId right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ULL) >> shift_; }

  std::vector<Slot> slots_ = std::vector<Slot>(2);
  size_t mask_ = 1;
  int shift_ = 63;
};

struct BpeOptions {
  bool byte_level = false;          // the vocabulary is written in the alphabet of bytes (ByteAlphabet)
  bool ignore_merges = false;       // a piece that is a token is that token
  bool byte_fallback = false;       // a character that is no token becomes tokens "<0x41>" of its bytes
  bool fuse_unk = false;            // unknown characters in a row become one unk
  std::optional<TokenId> unk;       // for characters that are no token; without it they vanish
  std::string continuation_prefix;  // of the spelling of characters inside a piece ("##"); mostly empty
  std::string end_suffix;           // of the spelling of a piece's last character ("</w>"); mostly empty
};

// A token that merging may make, as SentencePiece has it: the pair whose result scores best merges first.
struct ScoredToken {
  TokenId id = kNoToken;
  float score = 0;
  bool unused = false;  // made on the way, but taken apart again in the result
  bool whole = false;   // a piece that spells it is it, whatever would merge: a symbol that a user defined
};

// Left and right spelling, by rank.
using MergeList = std::vector<std::pair<std::string_view, std::string_view>>;

class BpeModel final : public TokenModel {
 public:
  // `hidden` (by id; may be shorter than the table): tokens that text must never become, whatever it spells: the
  // special ones, which are recognised before. Errors: invalid_argument naming a merge whose parts or result are no
  // tokens.
  static Result<std::unique_ptr<TokenModel>> make(const TokenTable& tokens, const MergeList& merges,
                                                  const std::vector<bool>& hidden, const BpeOptions& options);

  // As SentencePiece: two symbols merge where their spellings together are a token, whatever they are themselves;
  // `fuse_unk` and byte_fallback as in options. Errors: invalid_argument for a score that is not a number.
  static Result<std::unique_ptr<TokenModel>> make_by_scores(const TokenTable& tokens,
                                                            const std::vector<ScoredToken>& scored,
                                                            const BpeOptions& options);

  // O(n log n) time, constant stack.
  void encode(std::string_view piece, std::vector<TokenId>& out) const override;
  bool keeps_all() const override;

 private:
  // Where unused tokens came from: what was last seen to become them.
  using Parts = std::unordered_map<TokenId, std::pair<TokenId, TokenId>>;

  static constexpr TokenId kNotMergedYet = std::numeric_limits<TokenId>::min();

  explicit BpeModel(BpeOptions options) : options_(std::move(options)) {}
  // A pair of adjacent symbols, and what it becomes.
  struct Pair {
    TokenId left, right;
    MergeTable::Merge merge;
  };
  TokenId add_symbol(std::string_view character, TokenId known);
  std::vector<Pair> pairs_of(const std::vector<std::string_view>& spellings, const std::vector<ScoredToken>& scored);
  void add_scored_pieces(const TokenTable& tokens, const std::vector<ScoredToken>& scored);
  void add_whole_piece(std::string_view piece, TokenId id);
  MergeTable::Merge find_merge(TokenId left, TokenId right, Parts* parts) const;
  void take_apart_unused(const Parts& parts, std::vector<TokenId>& symbols) const;
  void resolve_virtual(std::vector<TokenId>& symbols) const;
  void add_fallback_tokens(const TokenTable& tokens);
  void find_safe_cuts(const TokenTable& tokens, const std::vector<TokenId>& merged);
  void encode_chunk(std::string_view chunk, bool may_be_whole, std::vector<TokenId>& out) const;
  void add_characters(const TokenTable& tokens, const std::vector<bool>& hidden);
  void add_whole_pieces(const TokenTable& tokens, const std::vector<bool>& hidden);
  void forget_wholes();
  void split_into_characters(std::string_view piece, std::vector<TokenId>& symbols) const;
  void merge_short(std::vector<TokenId>& symbols) const;
  void merge_long(std::vector<TokenId>& symbols, Parts* parts) const;
  void encode_by_merging(std::string_view piece, std::vector<TokenId>& symbols) const;

  BpeOptions options_;
  MergeTable merges_;
  std::array<TokenId, 256> byte_tokens_{};      // byte_level: of each byte; else: of each ASCII character
  SpellingMap character_tokens_;                // not byte_level: of the other characters
  std::array<TokenId, 256> fallback_tokens_{};  // "<0x00>".. with byte_fallback
  // Pieces that are spelled as a token is, and may therefore become one without merging. A piece always becomes the
  // same ids, so that those are found out when it first comes by; to merge all of a vocabulary's when it is loaded
  // takes longer than to load the rest of it.
  SpellingMap whole_pieces_;
  size_t longest_whole_piece_ = 0;
  // What each becomes: kNotMergedYet, kNoToken where it is not one token, else that token. Any thread may write it, and
  // all of them write the same.
  mutable std::vector<std::atomic<TokenId>> wholes_;
  // No token has U+2581 behind another character, so that none crosses its beginning: text is cut there.
  bool cuts_at_space_ = false;
  // Characters that are no token but part of some: symbols from first_virtual_ on, and what they spell.
  TokenId first_virtual_ = std::numeric_limits<TokenId>::max();
  std::vector<std::string> virtual_;
  std::vector<bool> unused_;  // by id; empty: none is
};

}  // namespace quire::text
