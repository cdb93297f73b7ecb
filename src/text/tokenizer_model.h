// What turns one piece of pre-tokenised text into ids: BPE; later Unigram and WordPiece.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "types/ids.h"

namespace quire::text {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of `piece`. REQUIRES: valid UTF-8, not empty. Thread-safe.
  virtual void encode(std::string_view piece, std::vector<TokenId>& out) const = 0;
  // No character vanishes, and none becomes a token that stands for text of any length.
  virtual bool keeps_all() const { return false; }
};

}  // namespace quire::text
