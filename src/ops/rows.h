// Numbers that one op hands to the next: float32, or what the product that reads them would round them to anyway
// (Backend::input_dtype()): F16, BF16 or F8_E4M3. Rows are as far apart as the op's arguments say, in numbers.
//
// Rows of F8_E4M3 are dense, [num_rows, columns] codes, behind which each row has a float that they are multiplied by:
// coded_scales(). They have as many columns as may_be_coded() says; norms and activations make them, and products
// (LinearArgs::x) take them, all of them at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quire::ops {

struct Rows {
  const void* data = nullptr;
  DType dtype = DType::kF32;

  Rows() = default;
  Rows(const float* floats) : data(floats) {}
  Rows(const void* numbers, DType type) : data(numbers), dtype(type) {}

  // REQUIRES: they are float32.
  const float* floats() const {
    QUIRE_CHECK(dtype == DType::kF32);
    return static_cast<const float*>(data);
  }
  // From number `index` on.
  Rows from(int64_t index) const { return {static_cast<const uint8_t*>(data) + row_bytes(dtype, index), dtype}; }
};

// Rows to be written.
struct OutRows {
  void* data = nullptr;
  DType dtype = DType::kF32;

  OutRows() = default;
  OutRows(float* floats) : data(floats) {}
  OutRows(void* numbers, DType type) : data(numbers), dtype(type) {}
  operator Rows() const { return {data, dtype}; }

  float* floats() const {
    QUIRE_CHECK(dtype == DType::kF32);
    return static_cast<float*>(data);
  }
  OutRows from(int64_t index) const { return {static_cast<uint8_t*>(data) + row_bytes(dtype, index), dtype}; }
};

// F32, F16, BF16.
constexpr bool is_row_format(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// And F8_E4M3.
constexpr bool is_input_format(DType dtype) {
  return is_row_format(dtype) || dtype == DType::kF8E4M3;
}
constexpr bool may_be_coded(int64_t columns) {
  return columns > 0 && columns % 16 == 0 && columns <= 8192;
}
inline const float* coded_scales(const Rows& coded, int64_t num_rows, int64_t columns) {
  QUIRE_CHECK(coded.dtype == DType::kF8E4M3 && may_be_coded(columns));
  return reinterpret_cast<const float*>(static_cast<const uint8_t*>(coded.data) + num_rows * columns);
}

}  // namespace quire::ops
