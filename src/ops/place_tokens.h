// ids[t] = tokens[sources[t]] where sources[t] >= 0; a token below 0, which none could be chosen for, becomes 0. The
// others stay. What one step chose becomes the next one's input before the host has seen it.
#pragma once

#include <cstdint>

#include "tensor/mirrored.h"

namespace quire::ops {

struct PlaceTokensArgs {
  const int32_t* tokens = nullptr;  // [any]
  Mirrored<int32_t> sources;        // [num_tokens]
  int32_t* ids = nullptr;           // [num_tokens]
  int64_t num_tokens = 0;
};

void check(const PlaceTokensArgs& args);

// Of one token, on the host.
inline void place_token(const PlaceTokensArgs& args, int64_t t) {
  const int32_t source = args.sources.host[t];
  if (source >= 0) args.ids[t] = args.tokens[source] < 0 ? 0 : args.tokens[source];
}

}  // namespace quire::ops
