#include "nn/mamba2.h"

#include <cmath>
#include <iterator>
#include <limits>

#include "nn/conv_taps.h"

namespace quire::nn {

namespace {

// One number a head, which GGUF files have as a column.
std::vector<float> of_heads(Loader& loader, const std::string& name, int64_t num_heads) {
  const Shape column{num_heads, 1};
  return loader.has_shape(name, column) ? loader.floats(loader.weight({name, column})) : loader.vector(name, num_heads);
}

}  // namespace

Mamba2::Mamba2(Loader& loader, const std::string& prefix, const Mamba2Options& options) : options_(options) {
  const Mamba2Config& sizes = options.sizes;
  if (!loader.shard().is_whole()) {
    loader.fail(unimplemented(
        "tensor_parallel_size {}: layers of Mamba are not cut yet; give them stages (--pipeline-parallel-size)",
        loader.shard().size));
  }
  in_ = {loader, prefix + ".in_proj", options.hidden_size, value_size() + num_channels() + sizes.num_heads,
         sizes.projection_bias};
  in_.keep_inputs_precise();  // what fades and what is written is in all that follows
  if (!sizes.multipliers.empty()) multipliers_ = {loader, multiplier_of_each()};
  conv_ = {loader,
           conv_taps(loader, prefix + ".conv1d.weight", num_channels(), sizes.conv_kernel, {{0, num_channels()}})};
  if (sizes.conv_bias) conv_bias_ = {loader, loader.vector(prefix + ".conv1d.bias", num_channels())};
  const bool is_rate = loader.has(prefix + ".A");
  std::vector<float> rates = of_heads(loader, prefix + (is_rate ? ".A" : ".A_log"), sizes.num_heads);
  for (float& rate : rates) rate = is_rate ? rate : -std::exp(rate);
  rates_ = {loader, rates};
  step_biases_ = {loader, loader.vector(prefix + ".dt_bias", sizes.num_heads)};
  skips_ = {loader, of_heads(loader, prefix + ".D", sizes.num_heads)};
  if (sizes.norm != MambaNorm::kNone) {
    const std::string norm = prefix + ".norm.weight";
    const Shape groups{sizes.num_groups, value_size() / sizes.num_groups};
    norm_weights_ = {loader, loader.has_shape(norm, groups) ? loader.floats(loader.weight({norm, groups}))
                                                            : loader.vector(norm, value_size())};
  }
  out_ = {loader, prefix + ".out_proj", value_size(), options.hidden_size, sizes.output_bias};
}

std::vector<float> Mamba2::multiplier_of_each() const {
  const Mamba2Config& sizes = options_.sizes;
  const int64_t counts[] = {value_size(), value_size(), key_size(), key_size(), sizes.num_heads};
  QUIRE_CHECK(sizes.multipliers.size() == std::size(counts));
  std::vector<float> each;
  for (size_t zone = 0; zone < std::size(counts); ++zone) {
    each.insert(each.end(), static_cast<size_t>(counts[zone]), static_cast<float>(sizes.multipliers[zone]));
  }
  return each;
}

void Mamba2::norm(const StepContext& step, const ops::View& values) const {
  const int64_t size = value_size() / options_.sizes.num_groups;
  for (int64_t first = 0; first < value_size(); first += size) {
    const ops::View group = values.columns(first, size);
    step(ops::RmsNormArgs{.hidden = group.strided_floats(),
                          .weight = norm_weights_.data() + first,
                          .eps = static_cast<float>(options_.norm_eps),
                          .num_tokens = values.num_rows,
                          .size = size,
                          .token_stride = values.row_stride,
                          .out = group});
  }
}

void Mamba2::operator()(const StepContext& step, const CacheLayer& layer, const Rotary& /*rotary*/,
                        const ops::ConstView& x, const ops::View& out) const {
  const Mamba2Config& sizes = options_.sizes;
  const int64_t mark = step.workspace.mark();
  const int64_t n = x.num_rows;
  const ops::View projected = step.workspace.take(n, in_.out_features());
  in_(step, x, projected);
  if (!multipliers_.empty()) step.multiply(multipliers_.data(), projected);
  const ops::View gates = projected.columns(0, value_size());
  const ops::View channels = projected.columns(value_size(), num_channels());
  const ops::View steps = projected.columns(value_size() + num_channels(), sizes.num_heads);

  layer.wait(step.backend);
  const ops::StateRuns runs = step.batch.runs_over(layer);
  const ops::View mixed = step.workspace.take(n, num_channels());
  const ops::ShortConvArgs conv{.runs = runs,
                                .in = channels.strided_floats(),
                                .in_stride = channels.row_stride,
                                .num_tokens = n,
                                .num_channels = num_channels(),
                                .kernel = sizes.conv_kernel,
                                .weight = conv_.data(),
                                .bias = conv_bias_.data(),
                                .silu = true,
                                .out = mixed.floats(),
                                .out_stride = mixed.row_stride};
  step(conv);
  const ops::View heads = step.workspace.take(n, value_size());
  step(ops::RecurrenceArgs{
      .runs = runs,
      .state_offset = conv.state_size(),
      .num_tokens = n,
      .num_key_heads = sizes.num_groups,
      .num_value_heads = sizes.num_heads,
      .key_dim = sizes.state_size,
      .value_dim = sizes.head_dim,
      .queries = mixed.columns(value_size() + key_size(), key_size()).strided_floats(),
      .keys = mixed.columns(value_size(), key_size()).strided_floats(),
      .values = mixed.columns(0, value_size()).strided_floats(),
      .token_stride = mixed.row_stride,
      .decays = steps.strided_floats(),
      .gate_stride = steps.row_stride,
      .rates = rates_.data(),
      .decay_biases = step_biases_.data(),
      .least_step = static_cast<float>(sizes.least_step),
      .most_step = sizes.most_step > 0 ? static_cast<float>(sizes.most_step) : std::numeric_limits<float>::infinity(),
      .skips = skips_.data(),
      .out = heads.floats()});
  if (sizes.norm == MambaNorm::kBeforeGate) norm(step, heads);
  step.gate(Activation::kSilu, gates, heads);
  if (sizes.norm == MambaNorm::kBehindGate) norm(step, heads);
  out_(step, heads, out);
  step.workspace.rewind(mark);
}

}  // namespace quire::nn
