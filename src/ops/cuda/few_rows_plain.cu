// Products of a few rows with values that are stored whole.
#include "ops/cuda/few_rows.cuh"

namespace quire::ops::cuda {

QUIRE_FEW_ROWS(kF32)
QUIRE_FEW_ROWS(kF16)
QUIRE_FEW_ROWS(kBF16)
QUIRE_FEW_ROWS(kF8E4M3)
QUIRE_FEW_ROWS(kF8E4M3_128)
QUIRE_FEW_ROWS(kF8E4M3_32)

}  // namespace quire::ops::cuda
