// Grouped products by tiles with weights of single values.
#include "ops/cuda/grouped_tiles.cuh"

namespace quire::ops::cuda {

QUIRE_GROUPED_TILES(kF16)
QUIRE_GROUPED_TILES(kBF16)
QUIRE_GROUPED_TILES(kF8E4M3)
QUIRE_GROUPED_TILES(kF8E4M3_128)
QUIRE_GROUPED_TILES(kF8E4M3_32)

}  // namespace quire::ops::cuda
