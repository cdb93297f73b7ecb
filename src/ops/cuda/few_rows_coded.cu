// Products of a few rows with coded weights and NVFP4.
#include "ops/cuda/few_rows.cuh"

namespace quire::ops::cuda {

QUIRE_CODED_FORMATS(QUIRE_FEW_ROWS)
QUIRE_FEW_ROWS(kNVFP4)

}  // namespace quire::ops::cuda
