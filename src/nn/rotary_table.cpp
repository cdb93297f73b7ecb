#include "nn/rotary_table.h"

#include <algorithm>
#include <cmath>

namespace quire::nn {
namespace {

constexpr int64_t kRowsAtOnce = 256;  // half a millisecond of work for heads of 128

}  // namespace

double query_factor(const QueryGrowth& growth, int64_t position) {
  if (growth.strength == 0) return 1;
  const auto distance = static_cast<double>(position + growth.shift);
  return 1 + growth.strength * std::log1p(std::floor(distance / growth.period));
}

RotaryTable::RotaryTable(Loader& loader, const std::vector<double>& frequencies, double scale, int64_t num_positions,
                         const QueryGrowth& growth)
    : frequencies_(frequencies.begin(), frequencies.end()),
      scale_(scale),
      growth_(growth),
      num_positions_(num_positions) {
  const int64_t size = num_positions * 2 * static_cast<int64_t>(frequencies.size());
  const auto hold = [&]() -> std::vector<float> {
    ops::Backend& backend = loader.backend();
    memory_ = Buffer(backend.allocator(), static_cast<size_t>(size) * sizeof(float));
    if (memory_.data() == nullptr) {
      loader.fail(resource_exhausted("no memory for the cosines and sines of {} positions: set --max-model-len lower",
                                     num_positions));
      return {};
    }
    if (backend.computes_in_host_memory()) return {};
    std::vector<float> all(static_cast<size_t>(size));
    make(0, num_positions, all.data());
    backend.upload(memory_.data(), all.data(), memory_.bytes());
    num_made_ = num_positions;
    return {};
  };
  loader.made(size, hold);  // which runs it where numbers are held, and counts them in any case
}

const float* RotaryTable::rows(int64_t end) const {
  auto* table = memory_.as<float>();
  if (table == nullptr || std::min(end, num_positions_) <= num_made_) return table;
  const int64_t stop = std::min(num_positions_, (end + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce);
  make(num_made_, stop, table + num_made_ * 2 * static_cast<int64_t>(frequencies_.size()));
  num_made_ = stop;
  return table;
}

void RotaryTable::make(int64_t first, int64_t end, float* rows) const {
  const size_t half = frequencies_.size();
  for (int64_t position = first; position < end; ++position, rows += 2 * half) {
    const double scale = scale_ * query_factor(growth_, position);
    for (size_t i = 0; i < half; ++i) {
      // Angles as the reference computes them: frequency and product rounded to float32.
      const double angle = static_cast<float>(position) * frequencies_[i];
      rows[i] = static_cast<float>(std::cos(angle) * scale);
      rows[half + i] = static_cast<float>(std::sin(angle) * scale);
    }
  }
}

}  // namespace quire::nn
