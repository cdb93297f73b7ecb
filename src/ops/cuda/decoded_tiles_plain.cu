// Products by decoded tiles with whole values.
#include "ops/cuda/decoded_tiles.cuh"

namespace quire::ops::cuda {

QUIRE_DECODED_TILES(kF16)
QUIRE_DECODED_TILES(kBF16)
QUIRE_DECODED_TILES(kF8E4M3)
QUIRE_DECODED_TILES(kF8E4M3_128)
QUIRE_DECODED_TILES(kF8E4M3_32)

}  // namespace quire::ops::cuda
