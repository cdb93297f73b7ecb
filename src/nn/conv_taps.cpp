#include "nn/conv_taps.h"

#include <cmath>

namespace quire::nn {

std::vector<float> conv_taps(Loader& loader, const std::string& name, int64_t channels, int64_t kernel,
                             const std::vector<Range>& taken) {
  const Shape flat{channels, kernel};
  const std::vector<float> stored =
      loader.floats(loader.weight({name, loader.has_shape(name, flat) ? flat : Shape{channels, 1, kernel}}));
  std::vector<float> taps;
  for (int64_t tap = 0; tap < kernel && !stored.empty(); ++tap) {
    for (const Range& range : taken) {
      for (int64_t c = range.first; c < range.end(); ++c) taps.push_back(stored[static_cast<size_t>(c * kernel + tap)]);
    }
  }
  return taps;
}

std::vector<float> of_heads(Loader& loader, const std::string& name, int64_t num_heads) {
  const Shape column{num_heads, 1};
  return loader.has_shape(name, column) ? loader.floats(loader.weight({name, column})) : loader.vector(name, num_heads);
}

std::vector<float> recurrence_rates(Loader& loader, const std::string& prefix, int64_t num_heads,
                                    const std::vector<Range>& taken) {
  const bool is_rate = loader.has(prefix + ".A");
  std::vector<float> rates = taken_of(of_heads(loader, prefix + (is_rate ? ".A" : ".A_log"), num_heads), taken);
  for (float& rate : rates) rate = is_rate ? rate : -std::exp(rate);
  return rates;
}

std::vector<float> taken_of(const std::vector<float>& values, const std::vector<Range>& ranges) {
  std::vector<float> taken;
  if (values.empty()) return taken;
  for (const Range& range : ranges) {
    taken.insert(taken.end(), values.begin() + range.first, values.begin() + range.end());
  }
  return taken;
}

}  // namespace quire::nn
