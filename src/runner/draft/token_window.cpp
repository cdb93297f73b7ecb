#include "runner/draft/token_window.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/hashing.h"

namespace quire::runner {

TokenWindow::TokenWindow(int32_t key_length, size_t capacity)
    : key_length_(static_cast<size_t>(key_length)), capacity_(capacity) {
  QUIRE_CHECK(key_length >= 1 && key_length <= 8 && capacity < kNowhere / 2);
  make_heads(capacity > 0 ? std::bit_ceil(capacity) : 256);
}

void TokenWindow::make_heads(size_t count) {
  heads_.assign(count, kNowhere);
}

size_t TokenWindow::head_of(std::span<const TokenId> key) const {
  return hash_bytes(key.data(), key.size_bytes(), 0) & (heads_.size() - 1);
}

// The token at `next` follows a key: that is where the key is found from now on.
void TokenWindow::link(uint32_t next) {
  TokenId key[8];
  for (size_t i = 0; i < key_length_; ++i) key[i] = (*this)[next - static_cast<uint32_t>(key_length_ - i)];
  uint32_t& head = heads_[head_of(std::span(key, key_length_))];
  earlier_[slot(next)] = head;
  head = next;
}

void TokenWindow::append(TokenId token) {
  if (end_ == kNowhere - 1) {  // places have been used up: begin anew
    tokens_.clear();
    earlier_.clear();
    make_heads(heads_.size());
    end_ = since_gap_ = 0;
  }
  const uint32_t place = end_++;
  if (slot(place) == tokens_.size()) {
    tokens_.push_back(token);
    earlier_.push_back(kNowhere);
  } else {
    tokens_[slot(place)] = token;
    earlier_[slot(place)] = kNowhere;
  }
  if (token == kGap) {
    since_gap_ = 0;
    return;
  }
  if (capacity_ == 0 && tokens_.size() > heads_.size()) {
    make_heads(4 * heads_.size());
    uint32_t run = 0;
    for (uint32_t i = 0; i < place; ++i) {
      if (tokens_[i] != kGap && run >= key_length_) link(i);
      run = tokens_[i] == kGap ? 0 : run + 1;
    }
  }
  // A window shorter than a key has forgotten its beginning.
  if (since_gap_ >= key_length_ && (capacity_ == 0 || capacity_ > key_length_)) link(place);
  ++since_gap_;
}

void TokenWindow::append(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) append(token);
}

void TokenWindow::find(std::span<const TokenId> text, int32_t most_length, size_t most_places,
                       std::vector<Place>& places) const {
  if (text.size() < key_length_) return;
  const size_t most = std::min(static_cast<size_t>(most_length), text.size());
  const uint32_t first = begin();
  uint32_t place = heads_[head_of(text.last(key_length_))];
  // A link into what is overwritten leads to a later place, or to one that is not there.
  for (size_t looked_at = 0; looked_at < most_places && place != kNowhere && place >= first; ++looked_at) {
    size_t length = 0;
    while (length < most && place - first > length &&
           (*this)[place - 1 - static_cast<uint32_t>(length)] == text[text.size() - 1 - length]) {
      ++length;
    }
    if (length >= key_length_) places.push_back({place, static_cast<int32_t>(length)});
    const uint32_t earlier = earlier_[slot(place)];
    if (earlier != kNowhere && earlier >= place) break;
    place = earlier;
  }
}

size_t TokenWindow::heap_bytes() const {
  return (tokens_.capacity() + earlier_.capacity() + heads_.capacity()) * sizeof(uint32_t);
}

}  // namespace quire::runner
