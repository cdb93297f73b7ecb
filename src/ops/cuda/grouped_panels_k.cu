// Grouped products by tensor cores of 16 bits with blocks of 256 values.
#include "ops/cuda/grouped_panels.cuh"

namespace quire::ops::cuda {

QUIRE_GROUPED_PANELS(kQ4_K)
QUIRE_GROUPED_PANELS(kQ5_K)
QUIRE_GROUPED_PANELS(kQ6_K)

}  // namespace quire::ops::cuda
