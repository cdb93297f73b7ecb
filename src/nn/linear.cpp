#include "nn/linear.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace quire::nn {
namespace {

// Matrices that some checkpoints keep as one, the rows of the first part above those of the second, and so on.
struct Fusion {
  std::array<std::string_view, 3> parts;
  std::string_view fused;
};
constexpr Fusion kFusions[] = {
    {{"q_proj", "k_proj", "v_proj"}, "qkv_proj"},
    {{"gate_proj", "up_proj"}, "gate_up_proj"},
};

// "model.layers.0.mlp." and "gate_proj".
std::pair<std::string_view, std::string_view> split_name(std::string_view prefix) {
  const size_t dot = prefix.rfind('.');
  if (dot == std::string_view::npos) return {"", prefix};
  return {prefix.substr(0, dot + 1), prefix.substr(dot + 1)};
}

bool is_made_of(const Fusion& fusion, const std::vector<Linear::Part>& parts) {
  const auto count = static_cast<size_t>(
      std::count_if(fusion.parts.begin(), fusion.parts.end(), [](std::string_view part) { return !part.empty(); }));
  return std::equal(
      parts.begin(), parts.end(), fusion.parts.begin(), fusion.parts.begin() + static_cast<ptrdiff_t>(count),
      [](const Linear::Part& part, std::string_view name) { return split_name(part.prefix).second == name; });
}

// The parts as this checkpoint spells them.
std::vector<Linear::Part> as_stored(const Loader& loader, std::vector<Linear::Part> parts) {
  if (loader.has_weight(parts.front().prefix + ".weight")) return parts;
  for (const Fusion& fusion : kFusions) {
    if (!is_made_of(fusion, parts)) continue;
    const std::string prefix = std::string(split_name(parts.front().prefix).first) + std::string(fusion.fused);
    if (!loader.has_weight(prefix + ".weight")) continue;
    Linear::Part whole{.prefix = prefix, .bias = parts.front().bias, .transposed = parts.front().transposed};
    for (const Linear::Part& part : parts) whole.rows += part.rows;
    return {whole};
  }
  return parts;
}

}  // namespace

Linear::Linear(Loader& loader, std::vector<Part> parts, int64_t in_features, WeightRole role)
    : in_features_(in_features), precise_(role != WeightRole::kProjection) {
  parts = as_stored(loader, std::move(parts));
  std::vector<WeightSpec> matrices;
  std::vector<Loader::Vector> biases;
  bool any_bias = false;
  for (const Part& part : parts) {
    matrices.push_back({part.prefix + ".weight", {part.rows, in_features}, part.transposed});
    biases.push_back({part.bias ? part.prefix + ".bias" : "", part.rows});
    out_features_ += part.rows;
    any_bias = any_bias || part.bias;
  }
  segments_ = loader.matrix(matrices, role);
  if (any_bias) bias_ = {loader, loader.vectors(biases)};
}

DType Linear::input_dtype(const StepContext& step, int64_t num_rows) const {
  if (segments_.empty()) return DType::kF32;
  const DType first = step.backend.input_dtype(*segments_.front(), num_rows);
  const auto agrees = [&](const auto& segment) { return step.backend.input_dtype(*segment, num_rows) == first; };
  return std::all_of(segments_.begin(), segments_.end(), agrees) ? first : DType::kF32;
}

void Linear::operator()(const StepContext& step, const ops::ConstView& x, const ops::View& out) const {
  QUIRE_CHECK(x.num_columns == in_features_ && out.num_columns == out_features_ && x.num_rows == out.num_rows);
  int64_t offset = 0;
  for (const auto& segment : segments_) {
    step(product_of(*segment, x, offset, out));
    offset += segment->rows();
  }
  if (step.adapts(this)) step.adapters->add(step, this, x, out);
}

void Linear::gated(const StepContext& step, const ops::ConstView& x, Activation function, const ops::View& products,
                   const ops::View& out) const {
  QUIRE_CHECK(products.is_dense() && out.is_dense());
  if (segments_.size() == 1 && !step.adapts(this)) {
    return step(ops::GatedLinearArgs{
        .product = product_of(*segments_.front(), x, 0, products), .function = function, .out = out});
  }
  (*this)(step, x, products);
  step(ops::ActivationArgs{
      .function = function, .in = products, .num_tokens = x.num_rows, .size = out.num_columns, .out = out});
}

ops::LinearArgs Linear::product_of(const ops::PackedMatrix& segment, const ops::ConstView& x, int64_t offset,
                                   const ops::View& out) const {
  return {.x = x,
          .x_stride = x.row_stride,
          .num_rows = x.num_rows,
          .weight = &segment,
          .bias = bias_.empty() ? nullptr : bias_.data() + offset,
          .out = out.columns(offset, segment.rows()),
          .out_stride = out.row_stride,
          .precise = precise_};
}

}  // namespace quire::nn
