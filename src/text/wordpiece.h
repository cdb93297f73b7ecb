// WordPiece (Schuster and Nakajima, 2012) as BERT cuts words, and WordLevel, whose words are tokens or unknown.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "text/tokenizer_model.h"
#include "text/tokenizer_trie.h"
#include "text/tokenizer_vocab.h"

namespace quire::text {

struct WordPieceOptions {
  TokenId unk = kNoToken;                  // for a word that cannot be cut into tokens
  std::string continuation_prefix = "##";  // of tokens that go on inside a word
  int64_t max_characters = 100;            // longer words are unknown
};

class WordPieceModel final : public TokenModel {
 public:
  // `hidden` (by id): tokens that text must never become.
  static std::unique_ptr<TokenModel> make(const TokenTable& tokens, const std::vector<bool>& hidden,
                                          const WordPieceOptions& options);
  // The longest token first, again and again. O(n * longest token) time.
  void encode(std::string_view piece, std::vector<TokenId>& out) const override;

 private:
  explicit WordPieceModel(WordPieceOptions options) : options_(std::move(options)) {}
  WordPieceOptions options_;
  ByteTrie beginnings_;
  ByteTrie continuations_;  // without their prefix
};

class WordLevelModel final : public TokenModel {
 public:
  static std::unique_ptr<TokenModel> make(const TokenTable& tokens, const std::vector<bool>& hidden,
                                          std::optional<TokenId> unk);
  void encode(std::string_view piece, std::vector<TokenId>& out) const override;

 private:
  ByteTrie words_;
  std::optional<TokenId> unk_;
};

}  // namespace quire::text
