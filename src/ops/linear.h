// out[m][n] = sum_k x[m][k] * weight[n][k] + bias[n].
// Each output sums over k in one order that depends on K and the weight's format alone, never on num_rows: a row's
// result is the same bits alone or among others.
#pragma once

#include "ops/packed_matrix.h"
#include "ops/rows.h"

namespace quire::ops {

struct LinearArgs {
  Rows x;  // [num_rows, weight.columns()], rows x_stride apart
  int64_t x_stride = 0;
  int64_t num_rows = 0;
  const PackedMatrix* weight = nullptr;  // of the same backend
  const float* bias = nullptr;           // [weight.rows()] or nullptr
  OutRows out;                           // [num_rows, weight.rows()], rows out_stride apart
  int64_t out_stride = 0;
  bool precise =
      false;  // x has outliers, or out decides much: rounded as finely as the backend's ways of rounding allow
};

void check(const LinearArgs& args);

}  // namespace quire::ops
