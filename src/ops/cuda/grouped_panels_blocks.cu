// Grouped products by tensor cores of 16 bits with blocks of 32 values.
#include "ops/cuda/grouped_panels.cuh"

namespace quire::ops::cuda {

QUIRE_GROUPED_PANELS(kQ4_0)
QUIRE_GROUPED_PANELS(kQ4_1)
QUIRE_GROUPED_PANELS(kQ5_0)
QUIRE_GROUPED_PANELS(kQ5_1)
QUIRE_GROUPED_PANELS(kQ8_0)
QUIRE_GROUPED_PANELS(kIQ4_NL)
QUIRE_GROUPED_PANELS(kMXFP4)

}  // namespace quire::ops::cuda
