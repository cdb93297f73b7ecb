// A checkpoint's blocks of codes, taken apart: what packed_panels.cpp arranges anew.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/dtype.h"

namespace quire::ops::cpu {

// A group of 32 values of one row. A quad is four codes, the first in the lowest byte.
struct StoredGroup {
  std::array<uint32_t, 8> quads;
  std::array<uint8_t, 2> small_scales;
};

// The bits of a block's number `index`: of its d (0) or, for formats with two, its m (1). f16, of Q8_K f32.
// REQUIRES: dtype is a format of codes that has it.
uint32_t stored_head(DType dtype, const uint8_t* block, int index);
// Where the z of a block of coded weights lies: CodedBlock::zero_bytes.
inline const uint8_t* coded_zero(DType dtype, const uint8_t* block) {
  return block + coded_block(dtype).head_bytes;
}
// REQUIRES: dtype is a format of codes.
StoredGroup stored_group(DType dtype, const uint8_t* block, int group);

}  // namespace quire::ops::cpu
