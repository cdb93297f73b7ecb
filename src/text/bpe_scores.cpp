// BPE whose merges are not listed but follow from the scores of tokens (SentencePiece).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "text/bpe.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

bool is_one_character(std::string_view text) {
  return !text.empty() && decode_code_point(text.data()).length == text.size();
}

// Eight bytes of a spelling from `begin` on, read forwards or backwards, as a number that orders as they do.
uint64_t eight_bytes(std::string_view spelling, size_t begin, bool backwards) {
  uint64_t number = 0;
  for (size_t i = begin; i < begin + sizeof(number); ++i) {
    const bool past = i >= spelling.size();
    const char byte = past ? '\0' : spelling[backwards ? spelling.size() - 1 - i : i];
    number = number << 8 | static_cast<unsigned char>(byte);
  }
  return number;
}

bool is_before(std::string_view a, std::string_view b, bool backwards) {
  if (!backwards) return a < b;
  return std::lexicographical_compare(a.rbegin(), a.rend(), b.rbegin(), b.rend(), [](char x, char y) {
    return static_cast<unsigned char>(x) < static_cast<unsigned char>(y);
  });
}

// Of each spelling the longest other one that it begins with (`backwards`: ends with), -1 where there is none. That
// one's own comes next, so that all of a spelling's are a chain. In sorted order the chain of a spelling is what is
// left of its predecessor's and the predecessor: no table of prefixes is needed. REQUIRES: no two are the same.
std::vector<int32_t> chains_of(const std::vector<std::string_view>& spellings, bool backwards) {
  struct Key {
    uint64_t first, second;  // mostly all of it: the spellings themselves lie all over the memory
    uint32_t index;
  };
  std::vector<Key> keys;
  keys.reserve(spellings.size());
  for (uint32_t i = 0; i < spellings.size(); ++i) {
    keys.push_back({eight_bytes(spellings[i], 0, backwards), eight_bytes(spellings[i], 8, backwards), i});
  }
  std::sort(keys.begin(), keys.end(), [&](const Key& a, const Key& b) {
    if (a.first != b.first) return a.first < b.first;
    if (a.second != b.second) return a.second < b.second;
    return is_before(spellings[a.index], spellings[b.index], backwards);
  });
  std::vector<int32_t> chains(spellings.size(), -1);
  std::vector<int32_t> open;
  for (const Key& key : keys) {
    const std::string_view spelling = spellings[key.index];
    const auto is_part = [&](int32_t other) {
      const std::string_view part = spellings[static_cast<size_t>(other)];
      return backwards ? spelling.ends_with(part) : spelling.starts_with(part);
    };
    while (!open.empty() && !is_part(open.back())) open.pop_back();
    if (!open.empty()) chains[key.index] = open.back();
    open.push_back(static_cast<int32_t>(key.index));
  }
  return chains;
}

// Dense ranks: the greatest score has rank 0, equal scores the same.
std::vector<uint32_t> ranks_of(const std::vector<ScoredToken>& scored) {
  std::vector<uint32_t> order(scored.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scored[a].score > scored[b].score; });
  std::vector<uint32_t> ranks(scored.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && scored[order[i]].score != scored[order[i - 1]].score) ++rank;
    ranks[order[i]] = rank;
  }
  return ranks;
}

}  // namespace

// The symbol of a character that is part of a token: the token it is (`known`), or a virtual one.
TokenId BpeModel::add_symbol(std::string_view character, TokenId known) {
  const bool is_byte = character.size() == 1;
  TokenId& byte_token = byte_tokens_[static_cast<unsigned char>(character[0])];
  const TokenId before = is_byte ? byte_token : character_tokens_.id_of(character);
  if (before != kNoToken) return before;
  const TokenId symbol = known != kNoToken ? known : first_virtual_ + static_cast<TokenId>(virtual_.size());
  if (is_byte) {
    byte_token = symbol;
  } else {
    character_tokens_.add(character, symbol);
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
  std::vector<std::string_view> spellings;
  spellings.reserve(scored.size());
  for (const ScoredToken& token : scored) {
    const std::string* spelling = tokens.find(token.id);
    QUIRE_CHECK(spelling != nullptr);
    if (std::isnan(token.score)) return invalid_argument("scores[{}] ({:?}) is not a number", token.id, *spelling);
    spellings.push_back(*spelling);
    if (token.unused && model->unused_.empty()) model->unused_.resize(static_cast<size_t>(tokens.size()), false);
    if (token.unused) model->unused_[static_cast<size_t>(token.id)] = true;
    if (is_one_character(*spelling)) model->add_symbol(*spelling, token.id);
  }
  const std::vector<Pair> pairs = model->pairs_of(spellings, scored);
  model->merges_.reserve(pairs.size());
  for (const Pair& pair : pairs) model->merges_.add(pair.left, pair.right, pair.merge);
  std::vector<TokenId> results;
  for (const ScoredToken& token : scored) {
    if (!is_one_character(*tokens.find(token.id))) results.push_back(token.id);
  }
  model->find_safe_cuts(tokens, results);
  model->add_scored_pieces(tokens, scored);
  return std::unique_ptr<TokenModel>(std::move(model));
}

// All ways to cut a token into two symbols. By then every token of one character is a symbol; characters that only
// begin or end a token become one here.
std::vector<BpeModel::Pair> BpeModel::pairs_of(const std::vector<std::string_view>& spellings,
                                               const std::vector<ScoredToken>& scored) {
  const std::vector<int32_t> prefixes = chains_of(spellings, /*backwards=*/false);
  const std::vector<int32_t> suffixes = chains_of(spellings, /*backwards=*/true);
  const std::vector<uint32_t> ranks = ranks_of(scored);
  std::vector<Pair> pairs;
  pairs.reserve(2 * scored.size());
  // beginnings[i]: the token that the first i bytes are; ends[i]: the one that the bytes from i on are.
  std::vector<TokenId> beginnings, ends;
  for (size_t i = 0; i < scored.size(); ++i) {
    const std::string_view spelling = spellings[i];
    if (is_one_character(spelling)) continue;
    beginnings.assign(spelling.size() + 1, kNoToken);
    ends.assign(spelling.size() + 1, kNoToken);
    for (int32_t part = prefixes[i]; part >= 0; part = prefixes[static_cast<size_t>(part)]) {
      beginnings[spellings[static_cast<size_t>(part)].size()] = scored[static_cast<size_t>(part)].id;
    }
    for (int32_t part = suffixes[i]; part >= 0; part = suffixes[static_cast<size_t>(part)]) {
      ends[spelling.size() - spellings[static_cast<size_t>(part)].size()] = scored[static_cast<size_t>(part)].id;
    }
    const size_t first = decode_code_point(spelling.data()).length;
    const size_t last = previous_code_point(spelling, spelling.size());
    beginnings[first] = add_symbol(spelling.substr(0, first), beginnings[first]);
    ends[last] = add_symbol(spelling.substr(last), ends[last]);
    for (size_t cut = first; cut <= last; ++cut) {
      if (beginnings[cut] == kNoToken || ends[cut] == kNoToken) continue;
      pairs.push_back({beginnings[cut], ends[cut], {ranks[i], scored[i].id}});
    }
  }
  return pairs;
}

void BpeModel::add_scored_pieces(const TokenTable& tokens, const std::vector<ScoredToken>& scored) {
  whole_pieces_.reserve(scored.size());
  for (const ScoredToken& token : scored) add_whole_piece(*tokens.find(token.id), token.id);
  forget_wholes();
  for (size_t i = 0; i < scored.size(); ++i) {
    if (scored[i].whole) wholes_[i] = scored[i].id;
  }
}

}  // namespace quire::text
