#include "text/tokenizer_vocab.h"

#include <algorithm>
#include <bit>

namespace quire::text {

void SpellingIndex::reserve(size_t count) {
  const size_t slots = std::bit_ceil(std::max<size_t>(2, 2 * count));
  if (slots > slots_.size()) resize(slots);
}

void SpellingIndex::resize(size_t slots) {
  const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(slots));
  mask_ = slots - 1;
  for (const Slot& slot : before) {
    if (slot.number != kNone) place(slot);
  }
}

void SpellingIndex::place(Slot wanted) {
  size_t slot = wanted.hash & mask_;
  while (slots_[slot].number != kNone) slot = (slot + 1) & mask_;
  slots_[slot] = wanted;
}

void SpellingIndex::add(uint32_t hash) {
  if (2 * (static_cast<size_t>(count_) + 1) > slots_.size()) resize(2 * slots_.size());
  place({hash, count_++});
}

void SpellingMap::reserve(size_t count) {
  index_.reserve(count);
  entries_.reserve(count);
}

bool SpellingMap::add(std::string_view spelling, TokenId id) {
  if (find(spelling) != kNone) return false;
  index_.add(SpellingIndex::hash_of(spelling));
  entries_.push_back({bytes_.size(), static_cast<uint32_t>(spelling.size()), id});
  bytes_.append(spelling);
  return true;
}

void TokenTable::reserve(size_t count) {
  tokens_.reserve(count);
  by_id_.reserve(count);
  index_.reserve(count);
}

Status TokenTable::add(std::string_view token, int64_t id, std::string_view field) {
  if (id < 0 || id > kMaxTokenId) {
    return invalid_argument("{}: token {:?} has id {}; expected 0 to {}", field, token, id, kMaxTokenId);
  }
  const auto index = static_cast<size_t>(id);
  if (index < by_id_.size() && by_id_[index] != SpellingIndex::kNone) {
    return invalid_argument("{}: id {} is given to both {:?} and {:?}", field, id, tokens_[by_id_[index]].spelling,
                            token);
  }
  const uint32_t hash = SpellingIndex::hash_of(token);
  if (const uint32_t known = find_number(token, hash); known != SpellingIndex::kNone) {
    return invalid_argument("{}: token {:?} has both id {} and id {}", field, token, tokens_[known].id, id);
  }
  if (index >= by_id_.size()) {
    // Sparse ids are refused once all are known (check_density); until then growth is bounded by kMaxTokenId.
    by_id_.resize(index + 1, SpellingIndex::kNone);
  }
  by_id_[index] = static_cast<uint32_t>(tokens_.size());
  index_.add(hash);
  tokens_.push_back({std::string(token), static_cast<TokenId>(id)});
  return {};
}

Status TokenTable::check_density(std::string_view field) const {
  constexpr int64_t kAllowedHoles = 1 << 16;
  if (size() > 2 * count() + kAllowedHoles) {
    return invalid_argument("{}: {} tokens, but the highest id is {} ({:?}); ids must be nearly contiguous", field,
                            count(), size() - 1, tokens_[by_id_.back()].spelling);
  }
  return {};
}

}  // namespace quire::text
