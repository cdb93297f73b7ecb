#include "nn/mamba2.h"

#include <iterator>
#include <limits>

#include "nn/conv_taps.h"

namespace quire::nn {

Mamba2::Mamba2(Loader& loader, const std::string& prefix, const Mamba2Options& options) : options_(options) {
  const Mamba2Config& sizes = options.sizes;
  const int64_t all_values = int64_t{sizes.num_heads} * sizes.head_dim;
  const int64_t all_keys = int64_t{sizes.num_groups} * sizes.state_size;
  const Linear::Part output{prefix + ".out_proj", options.hidden_size, sizes.output_bias};
  share_ = share_of_heads(loader, output, sizes.num_heads, sizes.num_groups, sizes.head_dim, loader.shard().rank);
  Linear::Part input{prefix + ".in_proj", 2 * all_values + 2 * all_keys + sizes.num_heads, sizes.projection_bias};
  const Range own_values{share_.heads.first * sizes.head_dim, value_size()};
  if (!loader.shard().is_whole()) {
    input.taken = channels(all_values);
    input.taken.insert(input.taken.begin(), own_values);
    input.taken.push_back({2 * all_values + 2 * all_keys + share_.heads.first, share_.heads.count});
  }
  in_ = {loader, {std::move(input)}, options.hidden_size};
  in_.keep_inputs_precise();  // what fades and what is written is in all that follows
  if (!sizes.multipliers.empty()) multipliers_ = {loader, multiplier_of_each()};
  if (sizes.norm != MambaNorm::kNone) columns_ = gathered_values(loader, output);
  load_small(loader, prefix);
  out_ = {loader, {output}, all_values, WeightRole::kProjection, Linear::Inputs{own_values}};
}

std::vector<Range> Mamba2::channels(int64_t first) const {
  const Mamba2Config& sizes = options_.sizes;
  const int64_t keys = first + int64_t{sizes.num_heads} * sizes.head_dim;
  const int64_t queries = keys + int64_t{sizes.num_groups} * sizes.state_size;
  const int64_t own = share_.kv_heads.first * sizes.state_size;
  return {{first + share_.heads.first * sizes.head_dim, value_size()},
          {keys + own, key_size()},
          {queries + own, key_size()}};
}

std::vector<comm::ColumnRange> Mamba2::gathered_values(Loader& loader, const Linear::Part& output) const {
  const Mamba2Config& sizes = options_.sizes;
  const int64_t of_group = sizes.num_heads / sizes.num_groups;
  std::vector<comm::ColumnRange> columns;
  bool has_whole_groups = true;
  for (int rank = 0; rank < loader.shard().size; ++rank) {
    const HeadShare share = share_of_heads(loader, output, sizes.num_heads, sizes.num_groups, sizes.head_dim, rank);
    columns.push_back({share.heads.first * sizes.head_dim, share.heads.count * sizes.head_dim});
    has_whole_groups = has_whole_groups && share.heads.first % of_group == 0 && share.heads.count % of_group == 0;
  }
  return has_whole_groups ? std::vector<comm::ColumnRange>() : columns;
}

void Mamba2::load_small(Loader& loader, const std::string& prefix) {
  const Mamba2Config& sizes = options_.sizes;
  const int64_t all_values = int64_t{sizes.num_heads} * sizes.head_dim;
  const int64_t all_channels = all_values + 2 * int64_t{sizes.num_groups} * sizes.state_size;
  const std::vector<Range> own = {share_.heads};
  conv_ = {loader, conv_taps(loader, prefix + ".conv1d.weight", all_channels, sizes.conv_kernel, channels(0))};
  if (sizes.conv_bias) {
    conv_bias_ = {loader, taken_of(loader.vector(prefix + ".conv1d.bias", all_channels), channels(0))};
  }
  rates_ = {loader, recurrence_rates(loader, prefix, sizes.num_heads, own)};
  step_biases_ = {loader, taken_of(loader.vector(prefix + ".dt_bias", sizes.num_heads), own)};
  skips_ = {loader, taken_of(of_heads(loader, prefix + ".D", sizes.num_heads), own)};
  if (sizes.norm == MambaNorm::kNone) return;
  const std::string norm = prefix + ".norm.weight";
  const Shape groups{sizes.num_groups, all_values / sizes.num_groups};
  const std::vector<float> weights =
      loader.has_shape(norm, groups) ? loader.floats(loader.weight({norm, groups})) : loader.vector(norm, all_values);
  const Range own_values{share_.heads.first * sizes.head_dim, value_size()};
  norm_weights_ = {loader, columns_.empty() ? taken_of(weights, {own_values}) : weights};
}

std::vector<float> Mamba2::multiplier_of_each() const {
  const Mamba2Config& sizes = options_.sizes;
  const int64_t counts[] = {value_size(), value_size(), key_size(), key_size(), num_heads()};
  QUIRE_CHECK(sizes.multipliers.size() == std::size(counts));
  std::vector<float> each;
  for (size_t zone = 0; zone < std::size(counts); ++zone) {
    each.insert(each.end(), static_cast<size_t>(counts[zone]), static_cast<float>(sizes.multipliers[zone]));
  }
  return each;
}

void Mamba2::norm(const StepContext& step, const ops::View& values) const {
  if (columns_.empty()) return norm_groups(step, values, num_groups());
  over_all_columns(step, columns_, values,
                   [&](const ops::View& all) { norm_groups(step, all, options_.sizes.num_groups); });
}

void Mamba2::norm_groups(const StepContext& step, const ops::View& values, int64_t num_groups) const {
  const int64_t size = values.num_columns / num_groups;
  for (int64_t first = 0; first < values.num_columns; first += size) {
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
  const ops::View steps = projected.columns(value_size() + num_channels(), num_heads());

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
      .num_key_heads = static_cast<int32_t>(num_groups()),
      .num_value_heads = static_cast<int32_t>(num_heads()),
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
