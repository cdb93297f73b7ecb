// The tokens of a text that grows at its end, in pieces that copies share: a copy costs the same however long the text
// is, but for a pointer for each kPiece tokens that came since the pieces were last joined.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "types/ids.h"

namespace quire::sampling {

class TokenHistory {
 public:
  static constexpr size_t kPiece = 256;
  static constexpr size_t kMostPieces = 64;  // then all are joined: copied once every kPiece * kMostPieces tokens

  TokenHistory() = default;
  explicit TokenHistory(std::span<const TokenId> tokens) { append(tokens); }

  size_t size() const { return num_joined() + pieces_.size() * kPiece + tail_.size(); }
  TokenId operator[](size_t at) const {
    if (at < num_joined()) return (*joined_)[at];
    at -= num_joined();
    return at / kPiece < pieces_.size() ? (*pieces_[at / kPiece])[at % kPiece] : tail_[at - pieces_.size() * kPiece];
  }

  void append(std::span<const TokenId> tokens) {
    if (size() == 0 && !tokens.empty()) {
      joined_ = std::make_shared<const std::vector<TokenId>>(tokens.begin(), tokens.end());
      return;
    }
    for (const TokenId token : tokens) push_back(token);
  }
  void push_back(TokenId token) {
    tail_.push_back(token);
    if (tail_.size() < kPiece) return;
    pieces_.push_back(std::make_shared<const std::vector<TokenId>>(std::exchange(tail_, {})));
    if (pieces_.size() == kMostPieces) join();
  }

  // `last` becomes the last `count` tokens, or all.
  void copy_last(size_t count, std::vector<TokenId>& last) const {
    const size_t begin = size() - std::min(count, size());
    last.clear();
    size_t at = 0;
    const auto add = [&](const std::vector<TokenId>& piece) {
      const size_t skipped = std::min(begin > at ? begin - at : 0, piece.size());
      last.insert(last.end(), piece.begin() + static_cast<std::ptrdiff_t>(skipped), piece.end());
      at += piece.size();
    };
    for_each_piece(add);
  }

 private:
  using Piece = std::shared_ptr<const std::vector<TokenId>>;

  size_t num_joined() const { return joined_ ? joined_->size() : 0; }

  template <typename F>
  void for_each_piece(F&& f) const {
    if (joined_) f(*joined_);
    for (const Piece& piece : pieces_) f(*piece);
    f(tail_);
  }
  void join() {
    std::vector<TokenId> all;
    copy_last(size(), all);
    joined_ = std::make_shared<const std::vector<TokenId>>(std::move(all));
    pieces_.clear();
  }

  Piece joined_;               // nullptr: none
  std::vector<Piece> pieces_;  // of kPiece tokens each
  std::vector<TokenId> tail_;  // fewer
};

}  // namespace quire::sampling
