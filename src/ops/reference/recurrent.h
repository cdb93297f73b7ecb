// Layers that read a text into a state, one token after the other.
#pragma once

#include "ops/delta_rule.h"
#include "ops/short_conv.h"

namespace quire::ops::reference {

void convolve(const ShortConvArgs& args);
void apply_delta_rule(const DeltaRuleArgs& args);

}  // namespace quire::ops::reference
