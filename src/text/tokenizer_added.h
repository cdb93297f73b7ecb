// Added tokens: spellings that are found in text before it is pre-tokenised, as Hugging Face's AddedVocabulary finds
// them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "types/ids.h"

namespace quire::text {

struct AddedToken {
  std::string content;
  TokenId id = kNoToken;
  bool special = false;                 // a control token: only trusted text may spell it
  bool normalized = false;              // searched for in normalised text, its spelling normalised too
  bool in_model = true;                 // the model has it too, and may make it of its parts
  bool single_word = false;             // no word character may touch it
  bool lstrip = false, rstrip = false;  // takes the white space before, after
};

// Half-open ranges of bytes, in order, none touching another: where a text is trusted.
using TrustedRanges = std::vector<std::pair<size_t, size_t>>;

// A stretch of text: an added token, or plain text between two.
struct AddedSpan {
  size_t begin = 0, end = 0;
  TokenId id = kNoToken;  // kNoToken: plain text
};

class AddedTokenMatcher {
 public:
  void add(const AddedToken& token);
  bool empty() const { return tokens_.empty(); }

  // Cuts text[begin, end) into spans. Leftmost occurrence first, the longest of those; a special token is one only
  // where all of its bytes are trusted (white space that lstrip and rstrip take aside). Tokens do not look beyond the
  // stretch. Time: O(bytes * longest token that shares a prefix with the text). REQUIRES: valid UTF-8.
  void split(std::string_view text, size_t begin, size_t end, const TrustedRanges& trusted,
             std::vector<AddedSpan>& spans) const;

 private:
  struct Found {
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  // The longest acceptable token at `position`.
  Found longest_at(std::string_view text, size_t position, size_t end, size_t trusted_until) const;

  // A trie whose edges live in one hash table: (node, byte) -> node.
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> token_at_ = {-1};  // per node: index into tokens_
  std::array<bool, 256> begins_{};
  std::vector<AddedToken> tokens_;
};

}  // namespace quire::text
