// Norms with their parameters.
#pragma once

#include <string>
#include <vector>

#include "nn/hidden_states.h"
#include "nn/parameter.h"

namespace quire::nn {

class RmsNorm {
 public:
  RmsNorm() = default;
  // Parameter "<prefix>.weight" [size]; weight_offset is added to it.
  RmsNorm(Loader& loader, const std::string& prefix, int64_t size, double eps, double weight_offset = 0)
      : size_(size), eps_(static_cast<float>(eps)) {
    std::vector<float> weight = loader.vector(prefix + ".weight", size);
    for (float& value : weight) value += static_cast<float>(weight_offset);
    weight_ = {loader, weight};
  }

  // Of weights that a model has worked out, [size]; empty when planning.
  RmsNorm(Loader& loader, const std::vector<float>& weight, int64_t size, double eps)
      : size_(size), eps_(static_cast<float>(eps)), weight_(loader, weight) {}

  bool present() const { return size_ > 0; }

  // out = norm(the residual stream), with its delta times delta_scale. [num_tokens, size]
  void operator()(const StepContext& step, HiddenStates& states, const ops::View& out, float delta_scale = 1.0f) const {
    QUIRE_CHECK(out.is_dense());
    step(ops::RmsNormArgs{.hidden = states.residual.floats(),
                          .delta = states.take_delta(),
                          .delta_scale = delta_scale,
                          .weight = weight_.data(),
                          .eps = eps_,
                          .num_tokens = out.num_rows,
                          .size = size_,
                          .out = out});
  }

  const float* weight() const { return weight_.data(); }
  float eps() const { return eps_; }

  // In place: [rows, size].
  void operator()(const StepContext& step, const ops::View& values) const {
    step(ops::RmsNormArgs{.hidden = values.strided_floats(),
                          .weight = weight_.data(),
                          .eps = eps_,
                          .num_tokens = values.num_rows,
                          .size = size_,
                          .token_stride = values.row_stride,
                          .out = values});
  }

 private:
  int64_t size_ = 0;
  float eps_ = 0;
  Parameter weight_;
};

class LayerNorm {
 public:
  LayerNorm() = default;
  // Parameters "<prefix>.{weight,bias}" [size], or neither; "{gamma,beta}" in files from before they were called so.
  // weight_offset is added to the weight.
  LayerNorm(Loader& loader, const std::string& prefix, int64_t size, double eps, bool has_parameters = true,
            double weight_offset = 0)
      : size_(size), eps_(static_cast<float>(eps)) {
    if (!has_parameters) return;
    const bool older = loader.has(prefix + ".gamma") && !loader.has(prefix + ".weight");
    std::vector<float> weight = loader.vector(prefix + (older ? ".gamma" : ".weight"), size);
    for (float& value : weight) value += static_cast<float>(weight_offset);
    weight_ = {loader, weight};
    bias_ = {loader, loader.vector(prefix + (older ? ".beta" : ".bias"), size)};
  }

  // Parameter "<prefix>.weight" alone.
  static LayerNorm without_bias(Loader& loader, const std::string& prefix, int64_t size, double eps) {
    LayerNorm norm(loader, prefix, size, eps, /*has_parameters=*/false);
    norm.weight_ = {loader, loader.vector(prefix + ".weight", size)};
    return norm;
  }

  bool present() const { return size_ > 0; }

  // In place: [rows, size], dense.
  void operator()(const StepContext& step, const ops::View& values) const {
    step(ops::LayerNormArgs{.hidden = values.floats(),
                            .weight = weight_.data(),
                            .bias = bias_.data(),
                            .eps = eps_,
                            .num_tokens = values.num_rows,
                            .size = size_,
                            .out = values.floats()});
  }

  // out = norm(the residual stream), with its delta. [num_tokens, size]
  void operator()(const StepContext& step, HiddenStates& states, const ops::View& out) const {
    step(ops::LayerNormArgs{.hidden = states.residual.floats(),
                            .delta = states.take_delta(),
                            .weight = weight_.data(),
                            .bias = bias_.data(),
                            .eps = eps_,
                            .num_tokens = out.num_rows,
                            .size = size_,
                            .out = out.floats()});
  }

 private:
  int64_t size_ = 0;
  float eps_ = 0;
  Parameter weight_;
  Parameter bias_;
};

enum class NormKind { kRms, kLayer, kLayerWithoutBias, kLayerWithoutParameters };

// Of the residual stream, of the kind that a family has.
class StreamNorm {
 public:
  StreamNorm() = default;
  // weight_offset: of RMS norms, and layer norms with a bias.
  StreamNorm(NormKind kind, Loader& loader, const std::string& prefix, int64_t size, double eps,
             double weight_offset = 0) {
    if (kind == NormKind::kRms) {
      rms_ = {loader, prefix, size, eps, weight_offset};
    } else if (kind == NormKind::kLayer) {
      layer_ = {loader, prefix, size, eps, /*has_parameters=*/true, weight_offset};
    } else if (kind == NormKind::kLayerWithoutParameters) {
      layer_ = {loader, prefix, size, eps, /*has_parameters=*/false};
    } else {
      layer_ = LayerNorm::without_bias(loader, prefix, size, eps);
    }
  }

  bool present() const { return rms_.present() || layer_.present(); }

  // The norm of the stream with its delta times delta_scale, in `out` [num_tokens, size]: of RMS norms as `dtype`, of
  // others floats. REQUIRES: delta_scale is 1 but for RMS norms.
  ops::View operator()(const StepContext& step, HiddenStates& states, const ops::View& out, DType dtype,
                       float delta_scale) const {
    if (rms_.present()) {
      const ops::View typed = out.as(dtype);
      rms_(step, states, typed, delta_scale);
      return typed;
    }
    QUIRE_CHECK(delta_scale == 1);
    layer_(step, states, out);
    return out;
  }

  // In place: [rows, size], dense.
  void operator()(const StepContext& step, const ops::View& values) const {
    if (rms_.present()) return rms_(step, values);
    layer_(step, values);
  }

 private:
  RmsNorm rms_;
  LayerNorm layer_;
};

}  // namespace quire::nn
