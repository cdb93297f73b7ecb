// A token and how likely it was where a guess was drawn.
#pragma once

#include "types/ids.h"

namespace quire {

struct DraftProbability {
  TokenId token = kNoToken;
  float probability = 0;

  bool operator==(const DraftProbability&) const = default;
};

}  // namespace quire
