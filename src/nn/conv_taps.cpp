#include "nn/conv_taps.h"

namespace quire::nn {

std::vector<float> conv_taps(Loader& loader, const std::string& name, int64_t num_channels, int64_t kernel,
                             const std::vector<Range>& own) {
  const Shape flat{num_channels, kernel};
  const std::vector<float> stored =
      loader.floats(loader.weight({name, loader.has_shape(name, flat) ? flat : Shape{num_channels, 1, kernel}}));
  std::vector<float> turned;
  for (int64_t tap = 0; tap < kernel && !stored.empty(); ++tap) {
    for (const Range& range : own) {
      for (int64_t c = range.first; c < range.end(); ++c)
        turned.push_back(stored[static_cast<size_t>(c * kernel + tap)]);
    }
  }
  return turned;
}

}  // namespace quire::nn
