// Products of a few rows with blocks of 32 values.
#include "ops/cuda/few_rows.cuh"

namespace quire::ops::cuda {

QUIRE_FEW_ROWS(kQ4_0)
QUIRE_FEW_ROWS(kQ4_1)
QUIRE_FEW_ROWS(kQ5_0)
QUIRE_FEW_ROWS(kQ5_1)
QUIRE_FEW_ROWS(kQ8_0)
QUIRE_FEW_ROWS(kIQ4_NL)
QUIRE_FEW_ROWS(kMXFP4)

}  // namespace quire::ops::cuda
