// Products of a few rows with blocks of 256 values.
#include "ops/cuda/few_rows.cuh"

namespace quire::ops::cuda {

QUIRE_FEW_ROWS(kQ2_K)
QUIRE_FEW_ROWS(kQ3_K)
QUIRE_FEW_ROWS(kQ4_K)
QUIRE_FEW_ROWS(kQ5_K)
QUIRE_FEW_ROWS(kQ6_K)
QUIRE_FEW_ROWS(kIQ4_XS)

}  // namespace quire::ops::cuda
