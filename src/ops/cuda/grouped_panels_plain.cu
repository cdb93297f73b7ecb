// Grouped products by tensor cores of 16 bits with whole values.
#include "ops/cuda/grouped_panels.cuh"

namespace quire::ops::cuda {

QUIRE_GROUPED_PANELS(kF16)
QUIRE_GROUPED_PANELS(kBF16)
QUIRE_GROUPED_PANELS(kF8E4M3)
QUIRE_GROUPED_PANELS(kF8E4M3_128)
QUIRE_GROUPED_PANELS(kF8E4M3_32)

}  // namespace quire::ops::cuda
