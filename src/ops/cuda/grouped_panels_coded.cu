// Grouped products by tensor cores of 16 bits with coded weights and NVFP4.
#include "ops/cuda/grouped_panels.cuh"

namespace quire::ops::cuda {

QUIRE_CODED_FORMATS(QUIRE_GROUPED_PANELS)
QUIRE_GROUPED_PANELS(kNVFP4)

}  // namespace quire::ops::cuda
