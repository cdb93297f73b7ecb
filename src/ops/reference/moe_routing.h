// The router of a mixture of experts, as ops/moe_routing.h says it.
#pragma once

#include "ops/moe_routing.h"

namespace quire::ops::reference {

void route(const MoeRoutingArgs& args);

}  // namespace quire::ops::reference
