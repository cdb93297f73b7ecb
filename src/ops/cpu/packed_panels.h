// A Linear's weight in panels of 32 columns (output features), K along the panel, in its own format. A panel is two
// tiles of 16 columns whose blocks alternate, so that one row's product reads memory straight ahead:
//   block 0 of tile 0, block 0 of tile 1, block 1 of tile 0, ...
// with blocks of
//   F32, F16, BF16   one step of k: 16 values
//   Q4_0             32 steps: 16 f16 d, then a step's 8 bytes, 32 times
//   Q4_1             32 steps: 16 f16 d, 16 f16 m, then the same
//                    byte j of a step: column j in the low half, column j + 8 in the high half
//   Q8_0             32 steps: 16 f16 d, then a step's 16 int8, 32 times
// Columns past N in the last panel are zeros. The bytes are the checkpoint's, but for that padding.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/packed_matrix.h"
#include "tensor/tensor.h"

namespace quire::ops::cpu {

class PackedPanels final : public PackedMatrix {
 public:
  // Packs the rows of all parts, stacked. Errors: unimplemented, resource_exhausted.
  static Result<std::unique_ptr<PackedPanels>> pack(std::span<const TensorView> parts, Allocator& allocator,
                                                    ThreadPool& pool);
  // What a packed [rows, columns] takes; 0 for a dtype without panels.
  static int64_t bytes_for(DType dtype, int64_t rows, int64_t columns);

  DType dtype() const override { return dtype_; }
  int64_t rows() const override { return rows_; }
  int64_t columns() const override { return columns_; }
  int64_t bytes() const override { return static_cast<int64_t>(data_.bytes()); }

  int64_t num_panels() const;
  int64_t panel_bytes() const;
  const uint8_t* panel(int64_t index) const { return data_.as<uint8_t>() + index * panel_bytes(); }

 private:
  PackedPanels(DType dtype, int64_t rows, int64_t columns, Buffer data)
      : dtype_(dtype), rows_(rows), columns_(columns), data_(std::move(data)) {}

  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  Buffer data_;
};

}  // namespace quire::ops::cpu
