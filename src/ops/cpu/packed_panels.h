// A Linear's weight in panels of 32 columns (output features), K along the panel, in its own format. A panel is two
// tiles of 16 columns whose blocks alternate, so that one row's product reads memory straight ahead:
//   block 0 of tile 0, block 0 of tile 1, block 1 of tile 0, ...
// A block of F32, F16 and F8_E4M3 is one step of k: 16 values. Of BF16 it is two, a column's both beside each other, as
// products of pairs take them; a last odd step has a 0 beside it. F8_E4M3 has a float for each of the panel's 32
// columns behind the last block: the column's scale times kF8E4M3PanelFactor, by which its sums are multiplied;
// F8_E4M3_128 has 32 for every 128 steps. Of the formats of codes it is the 32, 64, 128 or 256 steps of the
// checkpoint's block:
//   but for MXFP4 and NVFP4 f16 d of the 16 columns (Q8_K and some coded weights f32), for formats with a minimum f16 m
//   (or what small minima are multiplied by) of the 16
//   coded weights with zeros: z of the 16 columns, a byte or two each
//   then for each group of 32 steps, which is 8 quads of 4 steps:
//     formats of 256 only: small scales, a byte a column: Q4_K, Q5_K 16 scales, 16 minima; Q2_K 16 bytes of both for
//     the group's first 16 steps, 16 for the others; Q3_K, Q6_K the same with signed scales; IQ4_XS 16 signed scales;
//     the formats of grids 16 or twice 16, as IQ4_XS; TQ and Q8_K none
//     of the shorter ones MXFP4 16 exponents, NVFP4 twice 16 scales as F8_E4M3
//     codes in planes of 64 bytes, byte 4c + i being column c, step i of a quad:
//       4 bits   4 planes: plane p has quad p in the low half and quad p + 4 in the high half of its bytes
//       2 bits   2 planes: plane p has quads 4p .. 4p + 3, lowest bits first
//       1 bit    1 plane: bit j is quad j
//       8 bits   8 planes, one a quad
//     5 bits are a plane of 4 and one of 1; 6 bits 4 and 2; 3 bits 2 and 1
// A quad of a column is what one lane of a byte product takes. Columns past N in the last panel are zeros. The codes
// are the checkpoint's; Q3_K, Q4_K, Q5_K and IQ4_XS pack small scales into fewer than 8 bits and grow by 1 to 4 %. Of
// the formats of grids (IQ1, IQ2, IQ3) they are 4 bits that choose one of the format's levels (levels.h), of TQ1_0 the
// 2 bits of TQ2_0: the same values in more memory.
#pragma once

#include <memory>
#include <span>

#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/packed_matrix.h"
#include "tensor/tensor.h"

namespace quire::ops::cpu {

class PackedPanels final : public PackedMatrix {
 public:
  // Packs the rows of all parts, stacked. Errors: unimplemented, resource_exhausted.
  static Result<std::unique_ptr<PackedPanels>> pack(std::span<const TensorView> parts, Allocator& allocator,
                                                    ThreadPool& pool);
  // The same of F32, F16 and BF16 rows rounded to `dtype`, one that kernels.quantise() knows; rows are rounded as they
  // are packed. Errors: resource_exhausted.
  static Result<std::unique_ptr<PackedPanels>> quantise(std::span<const TensorView> parts, DType dtype,
                                                        const Kernels& kernels, Allocator& allocator, ThreadPool& pool);
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
  template <typename MakeRows>
  static Result<std::unique_ptr<PackedPanels>> make(DType dtype, int64_t rows, int64_t columns,
                                                    const MakeRows& make_rows, Allocator& allocator, ThreadPool& pool);

  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  Buffer data_;
};

}  // namespace quire::ops::cpu
