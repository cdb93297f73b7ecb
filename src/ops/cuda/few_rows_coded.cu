// Products of a few rows with coded weights and NVFP4.
#include "ops/cuda/few_rows.cuh"

namespace quire::ops::cuda {

QUIRE_FEW_ROWS(kU4_32)
QUIRE_FEW_ROWS(kU4_64)
QUIRE_FEW_ROWS(kU4_128)
QUIRE_FEW_ROWS(kU4_32_F32)
QUIRE_FEW_ROWS(kI8_32)
QUIRE_FEW_ROWS(kI8_128)
QUIRE_FEW_ROWS(kI8_32_Z)
QUIRE_FEW_ROWS(kNF4)
QUIRE_FEW_ROWS(kFP4)
QUIRE_FEW_ROWS(kU4_64_HZ)
QUIRE_FEW_ROWS(kU4_32_FZ)
QUIRE_FEW_ROWS(kI8_64_HZ)
QUIRE_FEW_ROWS(kNVFP4)

}  // namespace quire::ops::cuda
