// Grouped products by tiles with blocks of 32 values.
#include "ops/cuda/grouped_tiles.cuh"

namespace quire::ops::cuda {

QUIRE_GROUPED_TILES(kQ4_0)
QUIRE_GROUPED_TILES(kQ4_1)
QUIRE_GROUPED_TILES(kQ5_0)
QUIRE_GROUPED_TILES(kQ5_1)
QUIRE_GROUPED_TILES(kQ8_0)
QUIRE_GROUPED_TILES(kIQ4_NL)
QUIRE_GROUPED_TILES(kMXFP4)

}  // namespace quire::ops::cuda
