// The part of a backend that takes weights in, in whatever layout its kernels read them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/packed_matrix.h"
#include "tensor/tensor.h"

namespace quire::ops {

// A table of rows where the device reads it.
struct ResidentTable {
  TensorView view;
  int64_t row_stride = 0;  // EmbeddingArgs::row_stride
  // nullptr where the device reads the file's own. A weight of the same rows holds it too.
  std::shared_ptr<const Buffer> memory = {};
};

class WeightMemory {
 public:
  virtual ~WeightMemory() = default;

  // The weight of a Linear out of its rows as stored: each part is [n_i, k] of one dtype, stacked along n (Q, K and V,
  // or gate and up, make one product). Reads the parts once; they may go afterwards. Errors: unimplemented for a dtype
  // without a kernel; resource_exhausted.
  virtual Result<std::unique_ptr<PackedMatrix>> pack(std::span<const TensorView> parts) = 0;
  // The same of parts of F32, F16 and BF16 (each of its own), rounded to `dtype` as ops/quantise.h says. No row is kept
  // as floats for longer than it takes to round it. Errors: as pack().
  virtual Result<std::unique_ptr<PackedMatrix>> quantise(std::span<const TensorView> parts, DType dtype) = 0;
  // What products with a weight of this PackedMatrix::input() heed of it, by itself or in a group. An order and a
  // factor that are not heeded must be in the weight's numbers.
  virtual InputForm heeded(const InputForm& /*form*/, bool /*in_group*/) const { return {}; }
  // matrix.input() becomes `form`, which is heeded. Errors: resource_exhausted.
  virtual Status set_input(PackedMatrix& matrix, InputForm form) {
    matrix.set_input(std::move(form));
    return {};
  }
  // For products that take these weights together.
  virtual std::unique_ptr<PackedGroup> group(std::vector<const PackedMatrix*> matrices) {
    return std::make_unique<PackedGroup>(std::move(matrices));
  }
  // Rows as stored, for the Embedding op; the file must stay mapped. Errors: resource_exhausted.
  virtual Result<ResidentTable> table(const TensorView& stored) { return ResidentTable{.view = stored}; }
  // Bytes of table().
  virtual int64_t table_bytes(const TensorView& stored) const { return stored.bytes(); }
  // Whether it holds the rows of a table as those of a weight. Then weight_of() is the pack() of what the table was
  // made of without another copy: an embedding may be the head as well.
  virtual bool tables_are_weights() const { return false; }
  virtual std::unique_ptr<PackedMatrix> weight_of(const ResidentTable& table, const TensorView& stored);
  // What pack() or quantise() will hold, without packing.
  virtual int64_t packed_bytes(DType dtype, int64_t rows, int64_t columns) const = 0;
};

}  // namespace quire::ops
