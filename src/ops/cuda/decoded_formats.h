// The formats whose slices become what tensor cores multiply (slice_factors.cuh), known when a kernel is compiled.
#pragma once

#include <type_traits>

#include "ops/cuda/coded_formats.h"
#include "tensor/dtype.h"

namespace quire::ops::cuda {

// body(std::integral_constant<DType, dtype>{}); false for any other.
template <typename Body>
bool with_decoded_format(DType dtype, const Body& body) {
  switch (dtype) {
#define QUIRE_DECODED(name)                             \
  case DType::name:                                     \
    body(std::integral_constant<DType, DType::name>{}); \
    return true;
    QUIRE_DECODED(kF16)
    QUIRE_DECODED(kBF16)
    QUIRE_DECODED(kF8E4M3)
    QUIRE_DECODED(kF8E4M3_128)
    QUIRE_DECODED(kF8E4M3_32)
    QUIRE_DECODED(kQ4_0)
    QUIRE_DECODED(kQ4_1)
    QUIRE_DECODED(kQ5_0)
    QUIRE_DECODED(kQ5_1)
    QUIRE_DECODED(kQ8_0)
    QUIRE_DECODED(kQ4_K)
    QUIRE_DECODED(kQ5_K)
    QUIRE_DECODED(kQ6_K)
    QUIRE_DECODED(kIQ4_NL)
    QUIRE_DECODED(kMXFP4)
    QUIRE_DECODED(kNVFP4)
    QUIRE_CODED_FORMATS(QUIRE_DECODED)
#undef QUIRE_DECODED
    default:
      return false;
  }
}

}  // namespace quire::ops::cuda
