// Products of several weights, each with rows of its own, as one region of work over all their panels.
#pragma once

#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/panel_product.h"
#include "ops/grouped_linear.h"

namespace quire::ops::cpu {

struct GroupedLinearScratch {
  float* tiles = nullptr;         // kLinearScratchFloats a thread
  uint8_t* coded_rows = nullptr;  // for rows of whole numbers
  int64_t coded_bytes = 0;        // a row of them fits
};

// `coder`: how rows that meet weights of this dtype are kept.
void multiply_groups(const GroupedLinearArgs& args, const RowCoder& coder, const Kernels& kernels, ThreadPool& pool,
                     const GroupedLinearScratch& scratch);

}  // namespace quire::ops::cpu
