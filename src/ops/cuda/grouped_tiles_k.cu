// Grouped products by tiles with blocks of 256 values.
#include "ops/cuda/grouped_tiles.cuh"

namespace quire::ops::cuda {

QUIRE_GROUPED_TILES(kQ2_K)
QUIRE_GROUPED_TILES(kQ3_K)
QUIRE_GROUPED_TILES(kQ4_K)
QUIRE_GROUPED_TILES(kQ5_K)
QUIRE_GROUPED_TILES(kQ6_K)
QUIRE_GROUPED_TILES(kIQ4_XS)

}  // namespace quire::ops::cuda
