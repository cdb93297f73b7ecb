#include "ops/layer_norm.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const LayerNormArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0 && args.size > 0,
                  fmt::format("num_tokens {}, size {}", args.num_tokens, args.size));
  if (args.num_tokens == 0) return;
  QUIRE_CHECK(args.hidden != nullptr && args.out != nullptr);
  QUIRE_CHECK_MSG(args.delta == nullptr || args.out != args.hidden,
                  "with a delta the hidden state is an output of its own");
}

}  // namespace quire::ops
