#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <unordered_map>

#include "text/tokenizer_normalizer.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

// Below this many symbols a scan for the best pair beats any queue.
constexpr size_t kShortPiece = 24;

// Where the pairs of one rank begin, leftmost first. Positions mostly arrive in rising order: then this is a plain
// list.
class PositionQueue {
 public:
  bool empty() const { return next_ == ordered_.size() && late_.empty(); }
  void push(uint32_t position) {
    if (ordered_.empty() || position >= ordered_.back()) {
      ordered_.push_back(position);
    } else {
      late_.push_back(position);
      std::push_heap(late_.begin(), late_.end(), std::greater<>());
    }
  }
  uint32_t pop() {
    const bool from_ordered = next_ < ordered_.size() && (late_.empty() || ordered_[next_] <= late_.front());
    if (from_ordered) {
      const uint32_t position = ordered_[next_++];
      if (next_ == ordered_.size()) {
        ordered_.clear();
        next_ = 0;
      }
      return position;
    }
    std::pop_heap(late_.begin(), late_.end(), std::greater<>());
    const uint32_t position = late_.back();
    late_.pop_back();
    return position;
  }

 private:
  std::vector<uint32_t> ordered_;
  size_t next_ = 0;
  std::vector<uint32_t> late_;  // min-heap
};

// The pairs that wait to be merged: best rank first, leftmost first within a rank.
class PairQueue {
 public:
  bool empty() const { return ranks_.empty(); }
  void push(uint32_t rank, uint32_t position) {
    PositionQueue& queue = by_rank_[rank];
    if (queue.empty()) {
      ranks_.push_back(rank);
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    }
    queue.push(position);
  }
  std::pair<uint32_t, uint32_t> pop() {
    const uint32_t rank = ranks_.front();
    PositionQueue& queue = by_rank_[rank];
    const uint32_t position = queue.pop();
    if (queue.empty()) {
      std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
      ranks_.pop_back();
    }
    return {rank, position};
  }

 private:
  std::vector<uint32_t> ranks_;  // min-heap of the ranks whose queue is not empty
  std::unordered_map<uint32_t, PositionQueue> by_rank_;
};

}  // namespace

void MergeTable::reserve(size_t count) {
  const size_t slots = std::bit_ceil(std::max<size_t>(2, 2 * count));
  slots_.assign(slots, Slot{});
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
}

void MergeTable::add(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t slot = slot_of(key);
  while (slots_[slot].key != kEmpty) {
    if (slots_[slot].key == key) return;
    slot = (slot + 1) & mask_;
  }
  slots_[slot] = {key, merge};
}

Result<std::unique_ptr<TokenModel>> BpeModel::make(const TokenTable& tokens, const MergeList& merges,
                                                   const std::vector<bool>& hidden, const BpeOptions& options) {
  std::unique_ptr<BpeModel> model(new BpeModel(options));
  model->merges_.reserve(merges.size());
  std::string merged;
  std::vector<TokenId> results;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const bool has_prefix = !options.continuation_prefix.empty() && right.size() >= options.continuation_prefix.size();
    merged.assign(left).append(right.substr(has_prefix ? options.continuation_prefix.size() : 0));
    const auto left_id = tokens.find(left);
    const auto right_id = tokens.find(right);
    const auto merged_id = tokens.find(merged);
    if (!left_id || !right_id || !merged_id) {
      const std::string_view missing = !left_id ? left : !right_id ? right : std::string_view(merged);
      return invalid_argument("merges[{}] ({:?} with {:?}): {:?} is not in the vocabulary", rank, left, right, missing);
    }
    if (is_hidden(hidden, *merged_id)) continue;
    model->merges_.add(*left_id, *right_id, {static_cast<uint32_t>(rank), *merged_id});
    results.push_back(*merged_id);
  }
  model->add_characters(tokens, hidden);
  model->find_safe_cuts(tokens, results);
  model->add_whole_pieces(tokens, hidden);
  return std::unique_ptr<TokenModel>(std::move(model));
}

void BpeModel::add_characters(const TokenTable& tokens, const std::vector<bool>& hidden) {
  const auto visible = [&](std::string_view token) {
    const auto id = tokens.find(token);
    return id && !is_hidden(hidden, *id) ? *id : kNoToken;
  };
  add_fallback_tokens(tokens);
  byte_tokens_.fill(kNoToken);
  for (int byte = 0; byte < 256; ++byte) {
    const auto index = static_cast<size_t>(byte);
    if (options_.byte_level) {
      std::string character;
      append_code_point(ByteAlphabet::get().character(static_cast<uint8_t>(byte)), character);
      byte_tokens_[index] = visible(character);
    } else if (byte < 0x80) {
      byte_tokens_[index] = visible(std::string(1, static_cast<char>(byte)));
    }
  }
  if (options_.byte_level) return;
  const bool affixes = !options_.continuation_prefix.empty() || !options_.end_suffix.empty();
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const std::string* token = tokens.find(id);
    if (token == nullptr || token->empty() || is_hidden(hidden, id)) continue;
    const size_t length = next_utf8_sequence(*token, 0).length;
    if (affixes || (length > 1 && length == token->size())) character_tokens_.add(*token, id);
  }
}

// Byte tokens may be marked special: no text spells them, so there is nothing to protect.
bool BpeModel::keeps_all() const {
  const auto& bytes = options_.byte_level ? byte_tokens_ : fallback_tokens_;
  return (options_.byte_level || options_.byte_fallback) && std::ranges::find(bytes, kNoToken) == bytes.end();
}

void BpeModel::add_fallback_tokens(const TokenTable& tokens) {
  fallback_tokens_.fill(kNoToken);
  if (!options_.byte_fallback) return;
  for (size_t byte = 0; byte < 256; ++byte) {
    fallback_tokens_[byte] = tokens.find(fmt::format("<0x{:02X}>", byte)).value_or(kNoToken);
  }
}

void BpeModel::find_safe_cuts(const TokenTable& tokens, const std::vector<TokenId>& merged) {
  const TokenId space = character_tokens_.id_of(kSpaceSymbol);
  const bool affixes = !options_.continuation_prefix.empty() || !options_.end_suffix.empty();
  if (options_.byte_level || affixes || space == kNoToken || space >= first_virtual_) return;
  cuts_at_space_ = std::all_of(merged.begin(), merged.end(), [&](TokenId id) {
    const std::string_view token = *tokens.find(id);
    size_t found = 0;
    while ((found = token.find(kSpaceSymbol, found + 1)) != std::string_view::npos) {
      if (!token.substr(0, found).ends_with(kSpaceSymbol)) return false;
    }
    return true;
  });
}

void BpeModel::add_whole_piece(std::string_view piece, TokenId id) {
  longest_whole_piece_ = std::max(longest_whole_piece_, piece.size());
  whole_pieces_.add(piece, id);
}

void BpeModel::forget_wholes() {
  wholes_ = std::vector<std::atomic<TokenId>>(whole_pieces_.size());
  for (auto& whole : wholes_) whole.store(kNotMergedYet, std::memory_order_relaxed);
}

void BpeModel::add_whole_pieces(const TokenTable& tokens, const std::vector<bool>& hidden) {
  whole_pieces_.reserve(static_cast<size_t>(tokens.count()));
  std::string piece;
  for (TokenId id = 0; id < tokens.size(); ++id) {
    const std::string* token = tokens.find(id);
    if (token == nullptr || token->empty() || is_hidden(hidden, id)) continue;
    if (options_.byte_level) {
      if (!ByteAlphabet::get().to_bytes(*token, piece)) continue;
    } else {
      piece = *token;
      if (!options_.ignore_merges && piece.ends_with(options_.end_suffix)) {
        piece.resize(piece.size() - options_.end_suffix.size());
        if (piece.empty()) continue;
      }
    }
    add_whole_piece(piece, id);
  }
  forget_wholes();
  if (!options_.ignore_merges) return;
  for (uint32_t number = 0; number < whole_pieces_.size(); ++number) wholes_[number] = whole_pieces_.id(number);
}

void BpeModel::split_into_characters(std::string_view piece, std::vector<TokenId>& symbols) const {
  bool unk_before = false;  // the last symbol is an unk that the next unknown character may fuse into
  const auto unknown = [&] {
    if (options_.unk && !(unk_before && options_.fuse_unk)) symbols.push_back(*options_.unk);
    unk_before = true;
  };
  const auto known = [&](TokenId id) {
    symbols.push_back(id);
    unk_before = false;
  };
  if (options_.byte_level) {
    for (const char byte : piece) {
      const TokenId id = byte_tokens_[static_cast<unsigned char>(byte)];
      id == kNoToken ? unknown() : known(id);
    }
    return;
  }
  const bool affixes = !options_.continuation_prefix.empty() || !options_.end_suffix.empty();
  std::string spelling;
  for (size_t i = 0; i < piece.size();) {
    const uint32_t length = decode_code_point(piece.data() + i).length;
    std::string_view character = piece.substr(i, length);
    if (affixes) {
      spelling.assign(i > 0 ? options_.continuation_prefix : std::string()).append(character);
      if (i + length == piece.size()) spelling.append(options_.end_suffix);
      character = spelling;
    }
    i += length;
    TokenId id = kNoToken;
    if (character.size() == 1) {
      id = byte_tokens_[static_cast<unsigned char>(character[0])];
    } else {
      id = character_tokens_.id_of(character);
    }
    if (id != kNoToken) {
      known(id);
      continue;
    }
    const bool falls_back = options_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char byte) {
                              return fallback_tokens_[static_cast<unsigned char>(byte)] != kNoToken;
                            });
    if (!falls_back) {
      unknown();
      continue;
    }
    for (const char byte : character) known(fallback_tokens_[static_cast<unsigned char>(byte)]);
  }
}

void BpeModel::merge_short(std::vector<TokenId>& symbols) const {
  size_t count = symbols.size();
  std::array<MergeTable::Merge, kShortPiece> pairs;  // [i]: what symbols i and i + 1 become
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == MergeTable::kNoRank) break;
    symbols[best] = pairs[best].merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    --count;
    if (best > 0) pairs[best - 1] = merges_.find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = merges_.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

void BpeModel::merge_long(std::vector<TokenId>& symbols, Parts* parts) const {
  const auto count = static_cast<uint32_t>(symbols.size());
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> next(count), previous(count);
  for (uint32_t i = 0; i < count; ++i) {
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }
  PairQueue queue;
  const auto offer = [&](uint32_t left) {
    if (left == kNone || next[left] == kNone) return;
    const uint32_t rank = find_merge(symbols[left], symbols[next[left]], parts).rank;
    if (rank != MergeTable::kNoRank) queue.push(rank, left);
  };
  for (uint32_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const auto [rank, left] = queue.pop();
    // The pair may be gone: one of its symbols has merged otherwise.
    if (symbols[left] == kNoToken || next[left] == kNone) continue;
    const uint32_t right = next[left];
    const MergeTable::Merge merge = merges_.find(symbols[left], symbols[right]);
    if (merge.rank != rank) continue;
    symbols[left] = merge.merged;
    symbols[right] = kNoToken;
    next[left] = next[right];
    if (next[left] != kNone) previous[next[left]] = left;
    offer(previous[left]);
    offer(left);
  }
  std::erase(symbols, kNoToken);
}

MergeTable::Merge BpeModel::find_merge(TokenId left, TokenId right, Parts* parts) const {
  const MergeTable::Merge merge = merges_.find(left, right);
  if (parts != nullptr && merge.rank != MergeTable::kNoRank && unused_[static_cast<size_t>(merge.merged)]) {
    (*parts)[merge.merged] = {left, right};
  }
  return merge;
}

// Parts are shorter than the whole, so that this ends.
void BpeModel::take_apart_unused(const Parts& parts, std::vector<TokenId>& symbols) const {
  std::vector<TokenId> result;
  std::vector<TokenId> waiting(symbols.rbegin(), symbols.rend());
  while (!waiting.empty()) {
    const TokenId symbol = waiting.back();
    waiting.pop_back();
    const auto entry = parts.find(symbol);
    if (entry == parts.end() || !unused_[static_cast<size_t>(symbol)]) {
      result.push_back(symbol);
      continue;
    }
    waiting.push_back(entry->second.second);
    waiting.push_back(entry->second.first);
  }
  symbols = std::move(result);
}

// Characters that found no partner are unknown after all.
void BpeModel::resolve_virtual(std::vector<TokenId>& symbols) const {
  std::vector<TokenId> result;
  result.reserve(symbols.size());
  for (const TokenId symbol : symbols) {
    TokenId id = symbol;
    if (symbol >= first_virtual_) {
      const std::string& character = virtual_[static_cast<size_t>(symbol - first_virtual_)];
      const bool falls_back = options_.byte_fallback && std::all_of(character.begin(), character.end(), [&](char byte) {
                                return fallback_tokens_[static_cast<unsigned char>(byte)] != kNoToken;
                              });
      if (falls_back) {
        for (const char byte : character) result.push_back(fallback_tokens_[static_cast<unsigned char>(byte)]);
        continue;
      }
      id = options_.unk.value_or(kNoToken);
    }
    const bool fuses = options_.fuse_unk && options_.unk == id && !result.empty() && result.back() == id;
    if (id != kNoToken && !fuses) result.push_back(id);
  }
  symbols = std::move(result);
}

void BpeModel::encode_by_merging(std::string_view piece, std::vector<TokenId>& symbols) const {
  split_into_characters(piece, symbols);
  if (!unused_.empty()) {
    Parts parts;
    merge_long(symbols, &parts);
    take_apart_unused(parts, symbols);
  } else if (symbols.size() <= kShortPiece) {
    merge_short(symbols);
  } else {
    merge_long(symbols, nullptr);
  }
  if (!virtual_.empty()) resolve_virtual(symbols);
}

void BpeModel::encode_chunk(std::string_view chunk, bool may_be_whole, std::vector<TokenId>& out) const {
  uint32_t number = SpellingMap::kNone;
  if (may_be_whole && chunk.size() <= longest_whole_piece_) number = whole_pieces_.find(chunk);
  if (number != SpellingMap::kNone) {
    const TokenId whole = wholes_[number].load(std::memory_order_relaxed);
    if (whole >= 0) {
      out.push_back(whole);
      return;
    }
  }
  std::vector<TokenId> symbols;
  symbols.reserve(chunk.size());
  encode_by_merging(chunk, symbols);
  if (number != SpellingMap::kNone) {
    wholes_[number].store(symbols.size() == 1 ? symbols[0] : kNoToken, std::memory_order_relaxed);
  }
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void BpeModel::encode(std::string_view piece, std::vector<TokenId>& out) const {
  if (!cuts_at_space_ || piece.size() <= longest_whole_piece_) {
    if (!cuts_at_space_ || whole_pieces_.find(piece) != SpellingMap::kNone) {
      encode_chunk(piece, true, out);
      return;
    }
  }
  // With ignore_merges only a whole piece is looked up, never a part of one.
  size_t begin = 0;
  while (begin < piece.size()) {
    size_t end = begin;
    while (piece.substr(end).starts_with(kSpaceSymbol)) end += kSpaceSymbol.size();
    end = std::min(piece.find(kSpaceSymbol, end), piece.size());
    encode_chunk(piece.substr(begin, end - begin), !options_.ignore_merges, out);
    begin = end;
  }
}

}  // namespace quire::text
