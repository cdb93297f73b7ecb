// The grids of GGUF's formats IQ1, IQ2 and IQ3: constants of these formats, which their inventor (Iwan Kawrakow) chose
// so that the magnitudes of a model's weights are close to some point. A format names a point by its index.
#pragma once

#include <array>
#include <cstdint>

namespace quire {

// A point: in byte k, which of the format's magnitudes value k has: 0 is the least.
extern const std::array<uint64_t, 256> kIq2XxsGrid;
extern const std::array<uint64_t, 512> kIq2XsGrid;
extern const std::array<uint64_t, 1024> kIq2SGrid;
extern const std::array<uint64_t, 2048> kIq1Grid;  // of IQ1_S and IQ1_M
extern const std::array<uint32_t, 256> kIq3XxsGrid;
extern const std::array<uint32_t, 512> kIq3SGrid;

}  // namespace quire
