// Numbers on the device as rows that may lie apart: what layers hand to each other. Rows and columns can be cut out
// without a copy. Ops that take an array without strides are given floats() of one that is dense.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "ops/rows.h"

namespace quire::ops {

// Somebody else's memory; `Data` is void or, to be read alone, const void. A view of nullptr has a shape and no
// numbers: so have its parts.
template <typename Data>
struct BasicView {
  using Float = std::conditional_t<std::is_const_v<Data>, const float, float>;

  Data* data = nullptr;
  int64_t num_rows = 0;
  int64_t num_columns = 0;
  DType dtype = DType::kF32;  // of ops/rows.h
  int64_t row_stride = 0;     // from one row to the next, in numbers

  BasicView() = default;
  // Dense.
  BasicView(Data* numbers, int64_t rows, int64_t columns, DType type = DType::kF32)
      : data(numbers), num_rows(rows), num_columns(columns), dtype(type), row_stride(columns) {}
  operator BasicView<const void>() const requires(!std::is_const_v<Data>) {
    BasicView<const void> view(data, num_rows, num_columns, dtype);
    view.row_stride = row_stride;
    return view;
  }
  // For ops, which say shape and stride beside it.
  operator Rows() const { return {data, dtype}; }
  operator OutRows() const requires(!std::is_const_v<Data>) { return {data, dtype}; }

  BasicView rows(int64_t begin, int64_t count) const {
    QUIRE_CHECK(begin >= 0 && count >= 0 && begin + count <= num_rows);
    return part(begin * row_stride, count, num_columns);
  }
  BasicView columns(int64_t begin, int64_t count) const {
    QUIRE_CHECK(begin >= 0 && count >= 0 && begin + count <= num_columns);
    return part(begin, num_rows, count);
  }
  // The same memory for as many numbers of another type, which take no more.
  BasicView as(DType type) const {
    QUIRE_CHECK(is_input_format(type) && row_bytes(type, 1) <= row_bytes(dtype, 1) && is_dense());
    return BasicView(data, num_rows, num_columns, type);
  }

  bool is_dense() const { return num_rows <= 1 || row_stride == num_columns; }
  // REQUIRES: they are float32.
  Float* strided_floats() const {
    QUIRE_CHECK(dtype == DType::kF32);
    return static_cast<Float*>(data);
  }
  // REQUIRES: the same, one row behind the other.
  Float* floats() const {
    QUIRE_CHECK(is_dense());
    return strided_floats();
  }

 private:
  BasicView part(int64_t offset, int64_t rows, int64_t columns) const {
    QUIRE_CHECK(is_row_format(dtype) || (rows == num_rows && columns == num_columns));  // the others' scales lie apart
    BasicView view = *this;
    using Byte = std::conditional_t<std::is_const_v<Data>, const uint8_t, uint8_t>;
    if (data != nullptr) view.data = static_cast<Byte*>(data) + row_bytes(dtype, offset);
    view.num_rows = rows;
    view.num_columns = columns;
    return view;
  }
};

using View = BasicView<void>;
using ConstView = BasicView<const void>;

}  // namespace quire::ops
