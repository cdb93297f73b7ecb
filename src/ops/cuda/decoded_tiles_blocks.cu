// Products by decoded tiles with blocks of 32 values.
#include "ops/cuda/decoded_tiles.cuh"

namespace quire::ops::cuda {

QUIRE_DECODED_TILES(kQ4_0)
QUIRE_DECODED_TILES(kQ4_1)
QUIRE_DECODED_TILES(kQ5_0)
QUIRE_DECODED_TILES(kQ5_1)
QUIRE_DECODED_TILES(kQ8_0)
QUIRE_DECODED_TILES(kIQ4_NL)
QUIRE_DECODED_TILES(kMXFP4)

}  // namespace quire::ops::cuda
