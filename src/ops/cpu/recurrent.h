// Ops of recurrent layers: what threads do of a run, and where its state comes from and goes to.
#pragma once

#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/recurrence.h"
#include "ops/short_conv.h"

namespace quire::ops::cpu {

void convolve(const ShortConvArgs& args, const Kernels& kernels, ThreadPool& pool);
void apply_recurrence(const RecurrenceArgs& args, const Kernels& kernels, ThreadPool& pool);

}  // namespace quire::ops::cpu
