// Products of several weights with rows of their own: the experts of a mixture, or the heads of an attention.
//   out[m][n] = sum_k x[m][k] * weights[g][n][k] + bias[g][n]  for the rows m of group g
// The cost is that of the rows there are: a weight without rows is not read. As for ops/linear.h each output sums over
// k in one order that depends on K and the weights' format alone.
#pragma once

#include <cstdint>

#include "ops/packed_matrix.h"

namespace quire::ops {

struct GroupedLinearArgs {
  const float* x = nullptr;  // rows of weights' columns() floats, x_stride apart
  int64_t x_stride = 0;
  // Rows [offsets[g], offsets[g + 1]) are group g's: [num_groups + 1] on the device, rising, from 0 or more to num_rows
  // or less; what is outside is left alone. nullptr: num_rows / num_groups each.
  const int32_t* offsets = nullptr;
  int64_t num_rows = 0;                  // of x and out
  const PackedGroup* weights = nullptr;  // of the same backend
  const float* bias = nullptr;           // [num_groups, bias_stride] or nullptr
  int64_t bias_stride = 0;
  float* out = nullptr;  // rows of weights' rows() floats, out_stride apart
  int64_t out_stride = 0;
  // 0: the groups' rows follow each other. Else group g's begin at x + g * x_group_stride and out + g *
  // out_group_stride: heads beside each other in a row.
  int64_t x_group_stride = 0;
  int64_t out_group_stride = 0;
};

// Shapes alone: the offsets may lie where the host cannot read them.
void check(const GroupedLinearArgs& args);
// The offsets. REQUIRES: the host reads them.
void check_offsets(const GroupedLinearArgs& args);

// The first row of group g; of g = num_groups: how many rows there are. REQUIRES: the host reads the offsets.
inline int64_t first_row(const GroupedLinearArgs& args, int32_t group) {
  return args.offsets != nullptr ? args.offsets[group] : args.num_rows / args.weights->size() * group;
}
// Where row `row` of group `group` lies.
inline const float* x_row(const GroupedLinearArgs& args, int32_t group, int64_t row) {
  if (args.x_group_stride == 0) return args.x + row * args.x_stride;
  return args.x + group * args.x_group_stride + (row - first_row(args, group)) * args.x_stride;
}
inline float* out_row(const GroupedLinearArgs& args, int32_t group, int64_t row) {
  if (args.out_group_stride == 0) return args.out + row * args.out_stride;
  return args.out + group * args.out_group_stride + (row - first_row(args, group)) * args.out_stride;
}

}  // namespace quire::ops
