// BPE whose merges are not listed but follow from the scores of tokens (SentencePiece).
#include <algorithm>
#include <cmath>
#include <map>

#include "text/bpe.h"
#include "text/tokenizer_trie.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

bool is_one_character(std::string_view text) {
  return !text.empty() && decode_code_point(text.data()).length == text.size();
}

// Which beginnings and ends of a spelling are tokens, in time linear in it.
class Affixes {
 public:
  Affixes(const TokenTable& tokens, const std::vector<ScoredToken>& scored) {
    std::vector<std::string> reversed;
    reversed.reserve(scored.size());
    std::vector<ByteTrie::Entry> forward, backward;
    for (const ScoredToken& token : scored) {
      const std::string& spelling = *tokens.find(token.id);
      forward.push_back({spelling, token.id});
      backward.push_back({reversed.emplace_back(spelling.rbegin(), spelling.rend()), token.id});
    }
    forward_ = ByteTrie(std::move(forward));
    backward_ = ByteTrie(std::move(backward));
  }

  // beginnings[i]: the token that the first i bytes are; ends[i]: the one that the bytes from i on are.
  void find(std::string_view spelling, std::vector<TokenId>& beginnings, std::vector<TokenId>& ends) const {
    beginnings.assign(spelling.size() + 1, kNoToken);
    ends.assign(spelling.size() + 1, kNoToken);
    uint32_t node = ByteTrie::kRoot;
    for (size_t i = 0; i < spelling.size() && forward_.step(node, spelling[i]); ++i) {
      beginnings[i + 1] = forward_.value(node);
    }
    node = ByteTrie::kRoot;
    for (size_t i = spelling.size(); i > 0 && backward_.step(node, spelling[i - 1]); --i) {
      ends[i - 1] = backward_.value(node);
    }
  }

 private:
  ByteTrie forward_, backward_;
};

// Dense ranks: the greatest score has rank 0, equal scores the same.
std::map<float, uint32_t, std::greater<>> ranks_of(const std::vector<ScoredToken>& scored) {
  std::map<float, uint32_t, std::greater<>> ranks;
  for (const ScoredToken& token : scored) ranks.emplace(token.score, 0);
  uint32_t rank = 0;
  for (auto& entry : ranks) entry.second = rank++;
  return ranks;
}

}  // namespace

// The symbol of a character that is part of a token: the token it is, or a virtual one.
TokenId BpeModel::add_symbol(std::string_view character, const TokenMap& known) {
  const auto entry = known.find(character);
  TokenId symbol = entry != known.end() ? entry->second : kNoToken;
  if (character.size() == 1) {
    TokenId& place = byte_tokens_[static_cast<unsigned char>(character[0])];
    if (place != kNoToken) return place;
    if (symbol == kNoToken) symbol = first_virtual_ + static_cast<TokenId>(virtual_.size());
    place = symbol;
  } else {
    const auto [place, added] = character_tokens_.emplace(character, kNoToken);
    if (!added) return place->second;
    if (symbol == kNoToken) symbol = first_virtual_ + static_cast<TokenId>(virtual_.size());
    place->second = symbol;
  }
  if (symbol >= first_virtual_) virtual_.emplace_back(character);
  return symbol;
}

Result<std::unique_ptr<TokenModel>> BpeModel::make_by_scores(const TokenTable& tokens,
                                                             const std::vector<ScoredToken>& scored,
                                                             const BpeOptions& options) {
  std::unique_ptr<BpeModel> model(new BpeModel(options));
  model->first_virtual_ = static_cast<TokenId>(tokens.size());
  model->byte_tokens_.fill(kNoToken);
  model->add_fallback_tokens(tokens);
  TokenMap known;
  known.reserve(scored.size());
  for (const ScoredToken& token : scored) {
    const std::string* spelling = tokens.find(token.id);
    QUIRE_CHECK(spelling != nullptr);
    if (std::isnan(token.score)) return invalid_argument("scores[{}] ({:?}) is not a number", token.id, *spelling);
    known.emplace(*spelling, token.id);
    if (token.unused && model->unused_.empty()) model->unused_.resize(static_cast<size_t>(tokens.size()), false);
    if (token.unused) model->unused_[static_cast<size_t>(token.id)] = true;
    if (is_one_character(*spelling)) model->add_symbol(*spelling, known);
  }
  const Affixes affixes(tokens, scored);
  struct Pair {
    TokenId left, right;
    MergeTable::Merge merge;
  };
  std::vector<Pair> pairs;
  std::vector<TokenId> results;
  const auto ranks = ranks_of(scored);
  std::vector<TokenId> beginnings, ends;
  for (const ScoredToken& token : scored) {
    const std::string_view spelling = *tokens.find(token.id);
    if (is_one_character(spelling)) continue;
    results.push_back(token.id);
    const uint32_t rank = ranks.find(token.score)->second;
    affixes.find(spelling, beginnings, ends);
    const size_t first = decode_code_point(spelling.data()).length;
    const size_t last = previous_code_point(spelling, spelling.size());
    beginnings[first] = model->add_symbol(spelling.substr(0, first), known);
    ends[last] = model->add_symbol(spelling.substr(last), known);
    for (size_t cut = first; cut <= last; ++cut) {
      if (beginnings[cut] == kNoToken || ends[cut] == kNoToken) continue;
      pairs.push_back({beginnings[cut], ends[cut], {rank, token.id}});
    }
  }
  model->merges_.reserve(pairs.size());
  for (const Pair& pair : pairs) model->merges_.add(pair.left, pair.right, pair.merge);
  model->find_safe_cuts(tokens, results);
  model->add_scored_pieces(tokens, scored);
  return std::unique_ptr<TokenModel>(std::move(model));
}

void BpeModel::add_scored_pieces(const TokenTable& tokens, const std::vector<ScoredToken>& scored) {
  whole_pieces_.reserve(scored.size());
  std::vector<TokenId> symbols;
  for (const ScoredToken& token : scored) {
    const std::string& spelling = *tokens.find(token.id);
    symbols.clear();
    encode_by_merging(spelling, symbols);
    if (!token.whole && (symbols.size() != 1 || symbols[0] != token.id)) continue;
    longest_whole_piece_ = std::max(longest_whole_piece_, spelling.size());
    whole_pieces_.emplace(spelling, token.id);
  }
}

}  // namespace quire::text
