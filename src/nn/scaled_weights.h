// Weights of 8-bit floats as checkpoints keep them: "X.weight" of F8_E4M3 and beside it "X.weight_scale_inv" (DeepSeek,
// Qwen) or "X.weight_scale" (compressed-tensors, FBGEMM, ModelOpt), which are what codes are multiplied by: one number,
// one a row, or one a block of rows and columns, whose shape quantization_config says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "ops/backend.h"

namespace quire::nn {

class ScaledWeight {
 public:
  // Errors: data_loss where the scales are missing or fit no block; unimplemented for stacks of matrices.
  static Result<ScaledWeight> find(const checkpoint::Checkpoint& checkpoint,
                                   const checkpoint::CheckpointTensor& weight);

  const checkpoint::CheckpointTensor& scales() const { return *scales_; }
  // Whether `view` is rows of it.
  bool holds(const TensorView& view) const;

  // What it is packed as: F8_E4M3 where a row has one scale, F8_E4M3_128 where blocks are whole times 128 columns wide,
  // which loses nothing; else BF16, which is within 2^-9 of a value.
  DType form() const;
  // The rows of `view` as BF16, or as form() with its floats behind each row (ops/quantise.h). REQUIRES: holds(view).
  std::vector<uint8_t> read(const TensorView& view, DType form, ops::Backend& backend) const;

 private:
  ScaledWeight(const TensorView& codes, const checkpoint::CheckpointTensor& scales) : codes_(codes), scales_(&scales) {}
  float scale(int64_t row, int64_t column) const;
  void copy_row(DType form, int64_t row, const uint8_t* codes, uint8_t* out) const;
  void widen_row(int64_t row, const uint8_t* codes, uint8_t* out) const;

  TensorView codes_;  // [rows, columns]
  const checkpoint::CheckpointTensor* scales_;
  int64_t rows_of_block_ = 1;
  int64_t columns_of_block_ = 1;
  int64_t scales_of_row_ = 1;
};

}  // namespace quire::nn
