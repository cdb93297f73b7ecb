#include "text/tokenizer_vocab.h"

namespace quire::text {

void TokenTable::reserve(size_t count) {
  by_token_.reserve(count);
  by_id_.reserve(count);
}

Status TokenTable::add(std::string_view token, int64_t id, std::string_view field) {
  if (id < 0 || id > kMaxTokenId) {
    return invalid_argument("{}: token {:?} has id {}; expected 0 to {}", field, token, id, kMaxTokenId);
  }
  const auto index = static_cast<size_t>(id);
  if (index < by_id_.size() && by_id_[index] != nullptr) {
    return invalid_argument("{}: id {} is given to both {:?} and {:?}", field, id, *by_id_[index], token);
  }
  const auto [entry, added] = by_token_.emplace(token, static_cast<TokenId>(id));
  if (!added) {
    return invalid_argument("{}: token {:?} has both id {} and id {}", field, token, entry->second, id);
  }
  if (index >= by_id_.size()) {
    // Sparse ids are refused once all are known (check_density); until then growth is bounded by kMaxTokenId.
    by_id_.resize(index + 1, nullptr);
  }
  by_id_[index] = &entry->first;
  return {};
}

Status TokenTable::check_density(std::string_view field) const {
  constexpr int64_t kAllowedHoles = 1 << 16;
  if (size() > 2 * count() + kAllowedHoles) {
    return invalid_argument("{}: {} tokens, but the highest id is {} ({:?}); ids must be nearly contiguous", field,
                            count(), size() - 1, *by_id_.back());
  }
  return {};
}

}  // namespace quire::text
