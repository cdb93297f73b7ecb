// Products by decoded tiles with coded weights and NVFP4.
#include "ops/cuda/decoded_tiles.cuh"

namespace quire::ops::cuda {

QUIRE_CODED_FORMATS(QUIRE_DECODED_TILES)
QUIRE_DECODED_TILES(kNVFP4)

}  // namespace quire::ops::cuda
