// Which thread works on which rows and columns of a LowRankArgs.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/low_rank.h"

namespace quire::ops::cpu {

// `scratch`: of whoever calls it again and again, so that steps do not take memory. REQUIRES: ids on the host.
void add_low_rank(const LowRankArgs& args, const Kernels& kernels, ThreadPool& pool, std::vector<float>& scratch);

}  // namespace quire::ops::cpu
