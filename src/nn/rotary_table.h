// Cosines and sines of rotary positions.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/loader.h"
#include "tensor/tensor.h"
#include "types/model_config.h"

namespace quire::nn {

// What queries of a position are multiplied by.
double query_factor(const QueryGrowth& growth, int64_t position);

// One row a position: a cosine of each pair that rotates, then a sine of each. In the host's memory a row is made when
// the first token comes to its position: of a model of 262,144 positions the whole would be 64 MiB and a third of a
// second where nearly every text is a few thousand tokens long. On a card all rows are made at once.
class RotaryTable {
 public:
  RotaryTable() = default;
  // frequencies: radians a position, of each pair. scale: of every number. Nothing is held where the loader plans. No
  // memory: the loader fails.
  // growth: numbers of a position are multiplied by it, too.
  RotaryTable(Loader& loader, const std::vector<double>& frequencies, double scale, int64_t num_positions,
              const QueryGrowth& growth = {});

  // [num_positions, 2 * pairs], of which the rows before `end` may be read; nullptr where nothing is held. Of one
  // thread at a time. REQUIRES: end <= num_positions.
  const float* rows(int64_t end) const;

 private:
  void make(int64_t first, int64_t end, float* rows) const;

  std::vector<float> frequencies_;  // as the reference rounds them
  double scale_ = 1;
  QueryGrowth growth_;
  int64_t num_positions_ = 0;
  mutable Buffer memory_;
  mutable int64_t num_made_ = 0;
};

}  // namespace quire::nn
