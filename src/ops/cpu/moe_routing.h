// The router of a mixture of experts on the host: plain code, for its work is small beside the experts'.
#pragma once

#include "base/thread_pool.h"
#include "ops/moe_routing.h"

namespace quire::ops::cpu {

void route(const MoeRoutingArgs& args, ThreadPool& pool);

}  // namespace quire::ops::cpu
