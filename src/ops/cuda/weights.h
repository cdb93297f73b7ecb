// Weights on a card: rows as a checkpoint stores them, each at an address of 16.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "ops/cuda/cuda_memory.h"
#include "ops/cuda/kernels.h"
#include "ops/packed_matrix.h"

namespace quire::ops::cuda {

// What a weight of `dtype` is held in: itself where kernels read it, else F32, which loses nothing.
DType held_dtype(DType dtype);
int64_t held_row_bytes(DType dtype, int64_t columns);  // with what fills it up to a multiple of 16
int64_t held_bytes(DType dtype, int64_t rows, int64_t columns);

class CudaMatrix final : public PackedMatrix {
 public:
  // Copies `parts` above each other. Errors: unimplemented for a dtype that is no weight's; resource_exhausted.
  static Result<std::unique_ptr<CudaMatrix>> upload(std::span<const TensorView> parts, Allocator& allocator,
                                                    Uploader& uploader, cudaStream_t stream);
  // The rows of a table that upload() made of a tensor of `dtype`, which it holds.
  static std::unique_ptr<CudaMatrix> of_table(const ResidentTable& table, DType dtype);
  // Copies parts of F32, F16 or BF16 and rounds them on the card (ops/quantise.h), as many rows at once as the scratch
  // has room for. Errors: as upload().
  static Result<std::unique_ptr<CudaMatrix>> quantise(std::span<const TensorView> parts, DType dtype,
                                                      Allocator& allocator, Uploader& uploader, Buffer& scratch,
                                                      cudaStream_t stream);

  DType dtype() const override { return dtype_; }  // of the checkpoint; stored() tells what it is held in
  int64_t rows() const override { return stored_.rows; }
  int64_t columns() const override { return stored_.columns; }
  int64_t bytes() const override {
    return static_cast<int64_t>((memory_ == nullptr ? 0 : memory_->bytes()) + scales_.bytes());
  }
  const StoredMatrix& stored() const { return stored_; }
  // Of 8-bit floats: the rows' floats as MatrixProduct::weight_scales wants them; nullptr where the rows of a square of
  // 128 have different ones.
  const float* library_scales() const { return rows_agree_ ? scales_.as<const float>() : nullptr; }
  std::shared_ptr<const Buffer> memory() const { return memory_; }
  // input() becomes an order of x, or none, and a factor. Errors: resource_exhausted.
  Status hold_input(InputForm form, Allocator& allocator, Uploader& uploader);
  const int32_t* order() const { return order_.as<const int32_t>(); }  // of input(), on the card

 private:
  // Room for the parts' rows in `held`, nothing in it.
  static Result<std::unique_ptr<CudaMatrix>> make(std::span<const TensorView> parts, DType dtype, DType held,
                                                  Allocator& allocator);

  // The scales of parts that have been copied.
  void gather_scales(std::span<const TensorView> parts, Uploader& uploader, cudaStream_t stream);

  DType dtype_ = DType::kF32;
  StoredMatrix stored_;
  std::shared_ptr<Buffer> memory_;       // nullptr: the table's are its rows
  std::shared_ptr<const Buffer> table_;  // whose bytes are not counted here
  Buffer scales_;                        // of 8-bit floats: those at the rows' ends again
  bool rows_agree_ = true;
  Buffer order_;
};

// The weights' addresses on the card.
class CudaGroup final : public PackedGroup {
 public:
  CudaGroup(std::vector<const PackedMatrix*> matrices, Allocator& allocator, Uploader& uploader);
  const StoredMatrix& shape() const { return static_cast<const CudaMatrix&>((*this)[0]).stored(); }
  const uint8_t* const* weights() const { return addresses_.as<const uint8_t*>(); }
  // By which each weight's products are multiplied, on the card; nullptr: all by 1.
  const float* factors() const { return factors_.as<const float>(); }

 private:
  Buffer addresses_;
  Buffer factors_;
};

}  // namespace quire::ops::cuda
