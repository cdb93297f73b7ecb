// GPTQ (Frantar and others, 2023): a matrix is rounded column by column, and what each column's rounding is off by is
// made up for by the columns that are still to come, as the inputs that calibration has seen (their Hessian) tell how.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/backend.h"
#include "ops/view.h"

namespace quire::quantize {

// The mean of x^T x over rows x that a matrix is multiplied by: [columns, columns], the Hessian of the squared error
// but for a factor.
class Hessian {
 public:
  // The backend, which does the products, must outlive it.
  Hessian(ops::Backend& backend, int64_t columns);
  void add(const ops::ConstView& x);
  int64_t num_rows() const { return num_rows_; }
  // The sum of what was added over its rows. Errors: those of packing a matrix. The last call.
  Result<std::vector<float>> take();

 private:
  Status multiply();

  ops::Backend& backend_;
  int64_t columns_;
  int64_t num_rows_ = 0;
  int64_t held_ = 0;            // rows in `turned_`
  std::vector<float> turned_;   // [columns, kRowsAtOnce]: rows that are not in the sum yet, as columns
  std::vector<float> product_;  // [columns, columns]
  std::vector<float> sum_;      // the same
  Status failure_;              // of an addition
};

struct GptqOptions {
  int bits = 4;
  int64_t group_size = 128;                  // columns that share a scale; they divide the columns
  double damping = 0.01;                     // share of the mean of the Hessian's diagonal that is added to it
  std::function<float(float)> stored_scale;  // what a scale becomes where it is stored
};

// Codes of -2^(bits-1) and above; value = scale of its group * code.
struct CodedRows {
  std::vector<int8_t> codes;  // [rows, columns]
  std::vector<float> scales;  // [rows, columns / group_size], as they are stored
  double loss = 0;            // squared error of the outputs, a row of inputs, over all rows of weights
};

// weight: [rows, columns], finite. hessian: [columns, columns] as above, or empty: each weight is rounded by itself.
// Scales are those that weigh each column's error by the Hessian's diagonal; columns are taken in the order of it, the
// largest first. Errors: internal_error for a Hessian that is not positive definite even with damping.
Result<CodedRows> gptq_round(std::span<const float> weight, int64_t rows, int64_t columns, std::vector<float> hessian,
                             const GptqOptions& options, ThreadPool& threads);

}  // namespace quire::quantize
