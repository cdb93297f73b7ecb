// Grouped products by tiles with coded weights and NVFP4.
#include "ops/cuda/grouped_tiles.cuh"

namespace quire::ops::cuda {

QUIRE_CODED_FORMATS(QUIRE_GROUPED_TILES)
QUIRE_GROUPED_TILES(kNVFP4)

}  // namespace quire::ops::cuda
