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

// Where a block keeps its f16 numbers d and, for formats with two, m, if any; as byte offsets.
struct HeadOffsets {
  int32_t d;  // -1: none
  int32_t m;  // -1: none
};

// REQUIRES: dtype is a format of codes.
HeadOffsets head_offsets(DType dtype);
StoredGroup stored_group(DType dtype, const uint8_t* block, int group);

}  // namespace quire::ops::cpu
