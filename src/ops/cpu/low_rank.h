// Which thread works on which rows and columns of a LowRankArgs, and the parts that such work is made of.
#pragma once

#include <vector>

#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/low_rank.h"

namespace quire::ops::cpu {

// Rows of one run that a thread takes together, which share what is read of a factor: of few rows, and of many.
inline constexpr int64_t kLowRankRowsTogether = 8;
inline constexpr int64_t kLowRankManyRowsTogether = 32;

// Some rows of a run.
struct LowRankPiece {
  const LowRankFactors* factors;
  int64_t row;
  int64_t num_rows;  // up to as many as were said
  int64_t x_column;
  int64_t out_column;
};

// Makes `pieces` those of all runs, in their order, of up to `most_rows` each.
void cut_into_pieces(const LowRankArgs& args, int64_t most_rows, std::vector<LowRankPiece>& pieces);

// Ranks [first, first + count) of the piece's rows, each as many floats apart in `shrunk` as there are ranks; of a
// weight that replaces the base's they are the result.
void shrink(const LowRankArgs& args, const LowRankPiece& piece, int32_t first, int32_t count, const Kernels& kernels,
            float* shrunk);

// Tiles [begin, end) of all parts' columns, counted through; of a weight that replaces some rows, of those.
void expand(const LowRankArgs& args, const LowRankPiece& piece, int64_t begin, int64_t end, const Kernels& kernels,
            const float* shrunk);

// Tiles [first, last) of one part's columns.
void expand_part(const LowRankArgs& args, const LowRankPiece& piece, const LowRankPart& part, int64_t first,
                 int64_t last, const Kernels& kernels, const float* shrunk);

// `scratch`: of whoever calls it again and again, so that steps do not take memory. REQUIRES: ids on the host.
void add_low_rank(const LowRankArgs& args, const Kernels& kernels, ThreadPool& pool, std::vector<float>& scratch);

}  // namespace quire::ops::cpu
