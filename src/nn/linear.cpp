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
    for (const Linear::Part& part : parts) {
      for (const Range& range : part.taken) whole.taken.push_back({whole.rows + range.first, range.count});
      whole.rows += part.rows;
    }
    return {whole};
  }
  return parts;
}

// Each part's own rows, or the columns that are this rank's. Empty: some are missing, or cannot be cut, which the
// loader tells.
std::vector<StoredWeight> stored_parts(Loader& loader, const std::vector<Linear::Part>& parts, int64_t in_features,
                                       const std::optional<Linear::Inputs>& inputs) {
  std::vector<StoredWeight> cuts;
  bool all_there = true;
  const auto take = [&](Result<StoredWeight> cut) {
    if (cut.ok()) return cuts.push_back(*std::move(cut));
    loader.fail(cut.status());
    all_there = false;
  };
  for (const Linear::Part& part : parts) {
    const StoredWeight whole = loader.weight({part.prefix + ".weight", {part.rows, in_features}, part.transposed});
    if (!whole.present()) return {};
    if (inputs) {
      // Columns whose groups are no neighbours lie elsewhere among the codes: such are read as numbers.
      const bool reordered = whole.input.order != nullptr;
      take((reordered ? whole.scaled() : whole).cut_columns(inputs->taken.first, inputs->taken.count));
    } else if (part.taken.empty()) {
      cuts.push_back(whole);
    } else {
      for (const Range& range : part.taken) take(whole.cut_rows(range.first, range.count));
    }
  }
  if (!all_there) cuts.clear();
  return cuts;
}

}  // namespace

Linear::Linear(Loader& loader, std::vector<Part> parts, int64_t in_features, WeightRole role,
               std::optional<Inputs> inputs)
    : in_features_(in_features), precise_(role != WeightRole::kProjection) {
  const Shard& shard = loader.shard();
  parts = as_stored(loader, std::move(parts));
  if (shard.is_whole()) inputs.reset();
  if (inputs) in_features_ = inputs->taken.count;
  is_sum_ = inputs && inputs->is_sum;
  if (role == WeightRole::kHead && !shard.is_whole()) {
    QUIRE_CHECK(parts.size() == 1);
    columns_ = vocabulary_columns(parts[0].rows, shard.size);
    const comm::ColumnRange& own = columns_[static_cast<size_t>(shard.rank)];
    parts[0].taken = {{own.first, own.count}};
  }
  std::vector<Loader::Vector> biases;
  bool any_bias = false;
  AdaptableLayer layer{.kind = role == WeightRole::kHead ? AdaptableLayer::Kind::kHead : AdaptableLayer::Kind::kProduct,
                       .in_features = in_features_,
                       .adds_bias = !inputs || shard.rank == 0};
  if (inputs) layer.inputs = {in_features, {inputs->taken}};
  const std::vector<StoredWeight> weights = stored_parts(loader, parts, in_features, inputs);
  for (const Part& part : parts) {
    // Of a sum the first rank adds it.
    const bool adds_bias = part.bias && (!inputs || shard.rank == 0);
    if (part.bias && !adds_bias) (void)loader.weight({part.prefix + ".bias", {part.rows}});
    // A head's own outputs lie among those of all ranks, and so does its bias.
    biases.push_back(
        {adds_bias ? part.prefix + ".bias" : "", part.rows, columns_.empty() ? part.taken : std::vector<Range>()});
    const int64_t rows = columns_.empty() ? part.num_taken() : part.rows;
    const int64_t first = columns_.empty() ? out_features_ : part.taken[0].first;
    layer.parts.push_back({.module = part.prefix,
                           .first = first,
                           .size = part.num_taken(),
                           .stored = part.prefix,
                           .transposed = part.transposed,
                           .bias = part.bias,
                           .rows = {part.rows, part.taken}});
    out_features_ += rows;
    any_bias = any_bias || adds_bias;
  }
  if (!weights.empty()) segments_ = loader.place(weights, role);
  if (any_bias) bias_ = {loader, loader.vectors(biases)};
  // A head that is the embedding once more is a module of its own all the same.
  if (role == WeightRole::kHead && !layer.parts[0].module.ends_with("lm_head")) layer.parts[0].module = "lm_head";
  layer.out_features = out_features_;
  layer_ = loader.adaptable(std::move(layer));
}

DType Linear::input_dtype(const StepContext& step, int64_t num_rows) const {
  if (segments_.empty() || step.adapts(layer_.get())) return DType::kF32;  // adapters add to floats
  const DType first = step.backend.input_dtype(*segments_.front(), num_rows);
  const auto agrees = [&](const auto& segment) { return step.backend.input_dtype(*segment, num_rows) == first; };
  return std::all_of(segments_.begin(), segments_.end(), agrees) ? first : DType::kF32;
}

void Linear::operator()(const StepContext& step, const ops::ConstView& x, const ops::View& out) const {
  QUIRE_CHECK(x.num_columns == in_features_ && out.num_columns == out_features_ && x.num_rows == out.num_rows);
  const bool is_cut_head = !columns_.empty() && step.communicator != nullptr;
  int64_t offset = is_cut_head ? columns_[static_cast<size_t>(step.communicator->rank())].first : 0;
  const bool adapts = step.adapts(layer_.get());
  if (adapts && segments_.size() == 1 && !is_cut_head) {
    step.adapters->multiply(step, *layer_, product_of(*segments_.front(), x, 0, out), x, out);
  } else {
    for (const auto& segment : segments_) {
      step(product_of(*segment, x, offset, out));
      offset += segment->rows();
    }
    if (adapts) step.adapters->add(step, *layer_, x, out);
  }
  if (is_sum_) sum(step, out);
  if (is_cut_head && !step.workspace.measures())
    step.communicator->gather_columns({out.floats(), out.num_rows, out.row_stride}, columns_, /*root=*/0);
}

void Linear::sum(const StepContext& step, const ops::View& out) {
  if (step.communicator == nullptr || step.workspace.measures()) return;
  QUIRE_CHECK(out.is_dense());
  step.communicator->all_reduce({out.floats(), static_cast<size_t>(out.num_rows * out.num_columns)});
}

void Linear::gated(const StepContext& step, const ops::ConstView& x, Activation function, const ops::View& products,
                   const ops::View& out) const {
  QUIRE_CHECK(products.is_dense() && out.is_dense());
  if (segments_.size() == 1 && !step.adapts(layer_.get())) {
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
