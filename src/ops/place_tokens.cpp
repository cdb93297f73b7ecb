#include "ops/place_tokens.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const PlaceTokensArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0, fmt::format("num_tokens {}", args.num_tokens));
  if (args.num_tokens == 0) return;
  QUIRE_CHECK(args.tokens != nullptr && args.sources != nullptr && args.ids != nullptr);
}

}  // namespace quire::ops
