#include "ops/gate.h"

#include <fmt/format.h>

#include "base/check.h"

namespace quire::ops {

void check(const GateArgs& args) {
  QUIRE_CHECK_MSG(args.num_tokens >= 0 && args.size >= 0, fmt::format("{} tokens of {}", args.num_tokens, args.size));
  if (args.num_tokens == 0 || args.size == 0) return;
  QUIRE_CHECK(args.gates != nullptr && args.values != nullptr);
  QUIRE_CHECK_MSG(args.num_tokens == 1 ||
                      ((args.gate_stride == 0 || args.gate_stride >= args.size) && args.value_stride >= args.size),
                  fmt::format("strides {} and {} for {} floats", args.gate_stride, args.value_stride, args.size));
}

}  // namespace quire::ops
