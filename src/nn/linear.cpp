#include "nn/linear.h"

#include <algorithm>

namespace quire::nn {

Linear::Linear(Loader& loader, const std::vector<Part>& parts, int64_t in_features) : in_features_(in_features) {
  std::vector<Loader::Part> matrices;
  bool any_bias = false;
  for (const Part& part : parts) {
    matrices.push_back({part.prefix + ".weight", part.rows});
    out_features_ += part.rows;
    any_bias = any_bias || part.bias;
  }
  segments_ = loader.matrix(matrices, in_features);
  if (!any_bias) return;
  for (const Part& part : parts) {
    std::vector<float> bias = part.bias ? loader.vector(part.prefix + ".bias", part.rows) : std::vector<float>();
    bias.resize(static_cast<size_t>(part.rows));
    bias_.insert(bias_.end(), bias.begin(), bias.end());
  }
}

void Linear::operator()(ops::Backend& backend, const float* x, int64_t num_rows, float* out) const {
  int64_t offset = 0;
  for (const auto& segment : segments_) {
    backend(ops::LinearArgs{.x = x,
                            .x_stride = in_features_,
                            .num_rows = num_rows,
                            .weight = segment.get(),
                            .bias = bias_.empty() ? nullptr : bias_.data() + offset,
                            .out = out + offset,
                            .out_stride = out_features_});
    offset += segment->rows();
  }
}

}  // namespace quire::nn
