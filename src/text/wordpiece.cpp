#include "text/wordpiece.h"

#include <algorithm>

namespace quire::text {
namespace {

// The tokens that begin with `prefix`, without it.
ByteTrie trie_of(const TokenTable& tokens, const std::vector<bool>& hidden, std::string_view prefix) {
  std::vector<ByteTrie::Entry> entries;
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const std::string* token = tokens.find(id);
    if (token == nullptr || is_hidden(hidden, id) || !token->starts_with(prefix)) continue;
    entries.push_back({std::string_view(*token).substr(prefix.size()), id});
  }
  return ByteTrie(std::move(entries));
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

std::unique_ptr<TokenModel> WordPieceModel::make(const TokenTable& tokens, const std::vector<bool>& hidden,
                                                 const WordPieceOptions& options) {
  std::unique_ptr<WordPieceModel> model(new WordPieceModel(options));
  model->beginnings_ = trie_of(tokens, hidden, "");
  model->continuations_ = trie_of(tokens, hidden, options.continuation_prefix);
  return model;
}

void WordPieceModel::encode(std::string_view piece, std::vector<TokenId>& out) const {
  if (count_characters(piece) > options_.max_characters) {
    out.push_back(options_.unk);
    return;
  }
  const size_t before = out.size();
  for (size_t begin = 0; begin < piece.size();) {
    const ByteTrie& trie = begin == 0 ? beginnings_ : continuations_;
    const ByteTrie::Match match = trie.longest(piece.substr(begin));
    if (match.length == 0) {
      out.resize(before);
      out.push_back(options_.unk);
      return;
    }
    out.push_back(match.value);
    begin += match.length;
  }
}

std::unique_ptr<TokenModel> WordLevelModel::make(const TokenTable& tokens, const std::vector<bool>& hidden,
                                                 std::optional<TokenId> unk) {
  auto model = std::make_unique<WordLevelModel>();
  model->words_ = trie_of(tokens, hidden, "");
  model->unk_ = unk;
  return model;
}

void WordLevelModel::encode(std::string_view piece, std::vector<TokenId>& out) const {
  const int32_t id = words_.find(piece);
  if (id != ByteTrie::kNoValue) {
    out.push_back(id);
  } else if (unk_) {
    out.push_back(*unk_);
  }
}

}  // namespace quire::text
