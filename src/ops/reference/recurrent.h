// Layers that read a text into a state, one token after the other.
#pragma once

#include "ops/recurrence.h"
#include "ops/short_conv.h"

namespace quire::ops::reference {

void convolve(const ShortConvArgs& args);
void apply_recurrence(const RecurrenceArgs& args);

}  // namespace quire::ops::reference
