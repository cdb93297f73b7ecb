// DoRA (Liu et al., 2024): rows of the adapted weight W + scale * up * down are brought to lengths that were trained,
//   W' = diag(lengths / |W + scale * up * down|) (W + scale * up * down).
// The factor of a row is a number that base and adapter make together, so it is computed once, when the adapter is
// read.
#pragma once

#include <functional>
#include <vector>

#include "checkpoint/adapter_file.h"
#include "checkpoint/checkpoint.h"
#include "nn/adaptable_layer.h"

namespace quire::runner {

// Of ops::LowRankPart, by the rows that this rank has, in their order.
struct RowGains {
  std::vector<float> gain;
  std::vector<float> shift;
};

// Of ranks that add up what they compute each multiplies its part by the gains, and the first one adds the shifts.
// `pair`: whole; `source_of`: which row of the adapter is the model's row n, of all. Reads the base's weight from the
// checkpoint, some rows at a time, by this thread alone, and takes in_features * size * rank multiply-adds.
// Thread-safe. Errors: unimplemented where the base has no such weight by itself (experts), or in a format that is not
// read as numbers; data_loss for lengths that are no finite numbers and for a row of zeros.
Result<RowGains> row_gains(const checkpoint::AdapterFile::LowRank& pair, const nn::AdaptableLayer& layer,
                           const nn::AdaptableLayer::Part& part, const std::function<int64_t(int64_t)>& source_of,
                           const checkpoint::Checkpoint& base);

}  // namespace quire::runner
