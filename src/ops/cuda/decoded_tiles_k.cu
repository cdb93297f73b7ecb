// Products by decoded tiles with blocks of 256 values.
#include "ops/cuda/decoded_tiles.cuh"

namespace quire::ops::cuda {

QUIRE_DECODED_TILES(kQ4_K)
QUIRE_DECODED_TILES(kQ5_K)
QUIRE_DECODED_TILES(kQ6_K)

}  // namespace quire::ops::cuda
