// Which kernels multiply, where it is not left to the rows.
#pragma once

#include <cstdint>

namespace quire::ops {

enum class ProductKernels : uint8_t {
  kByRows,        // each format's by the number of rows
  kFewRows,       // the kernel of few rows for any number of them
  kDecodedTiles,  // tensor cores that codes are decoded for once, for formats that have it, else as kByRows
  kLibrary,       // cuBLASLt's for any number of rows
};

}  // namespace quire::ops
