#include "nn/gated_delta_net.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "nn/conv_taps.h"

namespace quire::nn {
namespace {

// Neighbours are one range.
void add_range(Range range, std::vector<Range>& ranges) {
  if (!ranges.empty() && ranges.back().end() == range.first) {
    ranges.back().count += range.count;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(Loader& loader, const std::string& prefix, const GatedDeltaNetOptions& options)
    : options_(options) {
  const DeltaNetConfig& sizes = options.sizes;
  const bool is_olmo = loader.has_weight(prefix + ".o_proj.weight");
  const Linear::Part output{prefix + (is_olmo ? ".o_proj" : ".out_proj"), options.hidden_size};
  if (sizes.heads_in_turns && sizes.num_value_heads > sizes.num_key_heads && !loader.shard().is_whole()) {
    loader.fail(unimplemented(
        "tensor_parallel_size {}: a GGUF file has the value heads of a key head far apart, and they are not cut yet; "
        "give the model's safetensors",
        loader.shard().size));
  }
  share_ = share_of_heads(loader, output, sizes.num_value_heads, sizes.num_key_heads, sizes.value_head_dim,
                          loader.shard().rank);
  in_ = {loader, projections(loader, prefix), options.hidden_size};
  in_.keep_inputs_precise();  // what fades and what is corrected is in all that follows
  load_small(loader, prefix);
  const int64_t dim = sizes.value_head_dim;
  out_ = {loader,
          {output},
          int64_t{sizes.num_value_heads} * dim,
          WeightRole::kProjection,
          Linear::Inputs{{share_.heads.first * dim, share_.heads.count * dim}}};
}

std::vector<Range> GatedDeltaNet::channels() const {
  const DeltaNetConfig& sizes = options_.sizes;
  const int64_t keys = int64_t{sizes.num_key_heads} * sizes.key_head_dim;
  const Range own_keys{share_.kv_heads.first * sizes.key_head_dim, key_size()};
  return {own_keys,
          {keys + own_keys.first, own_keys.count},
          {2 * keys + share_.heads.first * sizes.value_head_dim, value_size()}};
}

std::vector<Linear::Part> GatedDeltaNet::projections(const Loader& loader, const std::string& prefix) const {
  const DeltaNetConfig& sizes = options_.sizes;
  const int64_t key = sizes.key_head_dim;
  const int64_t value = sizes.value_head_dim;
  const int64_t values = sizes.num_value_heads * value;
  const bool whole = loader.shard().is_whole();
  std::vector<Linear::Part> parts;
  if (loader.has_weight(prefix + ".q_proj.weight")) return projections_apart(loader, prefix);
  if (loader.has_weight(prefix + ".in_proj_qkvz.weight")) {
    parts.push_back(by_key_heads(prefix + ".in_proj_qkvz", {key, key}, value));
  } else {
    parts.push_back({.prefix = prefix + ".in_proj_qkv", .rows = 2 * sizes.num_key_heads * key + values});
    parts.push_back({.prefix = prefix + ".in_proj_z", .rows = values});
    if (!whole) parts[0].taken = channels();
    if (!whole) parts[1].taken = {{share_.heads.first * value, value_size()}};
  }
  if (loader.has_weight(prefix + ".in_proj_ba.weight")) {
    parts.push_back(by_key_heads(prefix + ".in_proj_ba", {}, 1));
    return parts;
  }
  for (const char* name : {".in_proj_b", ".in_proj_a"}) {
    parts.push_back({.prefix = prefix + name, .rows = sizes.num_value_heads});
    if (!whole) parts.back().taken = {share_.heads};
  }
  return parts;
}

std::vector<Linear::Part> GatedDeltaNet::projections_apart(const Loader& loader, const std::string& prefix) const {
  const DeltaNetConfig& sizes = options_.sizes;
  struct Kind {
    const char* name;
    const Range& heads;
    int64_t num_heads;
    int64_t dim;
  };
  const Kind kinds[] = {{".q_proj", share_.kv_heads, sizes.num_key_heads, sizes.key_head_dim},
                        {".k_proj", share_.kv_heads, sizes.num_key_heads, sizes.key_head_dim},
                        {".v_proj", share_.heads, sizes.num_value_heads, sizes.value_head_dim},
                        {".g_proj", share_.heads, sizes.num_value_heads, sizes.value_head_dim},
                        {".b_proj", share_.heads, sizes.num_value_heads, 1},
                        {".a_proj", share_.heads, sizes.num_value_heads, 1}};
  std::vector<Linear::Part> parts;
  for (const Kind& kind : kinds) {
    parts.push_back({.prefix = prefix + kind.name, .rows = kind.num_heads * kind.dim});
    if (loader.shard().is_whole()) continue;
    parts.back().taken = {{kind.heads.first * kind.dim, kind.heads.count * kind.dim}};
  }
  return parts;
}

std::vector<float> GatedDeltaNet::load_taps(Loader& loader, const std::string& prefix) const {
  const DeltaNetConfig& sizes = options_.sizes;
  const int64_t keys = int64_t{sizes.num_key_heads} * sizes.key_head_dim;
  const int64_t values = int64_t{sizes.num_value_heads} * sizes.value_head_dim;
  const int64_t all = 2 * keys + values;
  if (!loader.has(prefix + ".q_conv1d.weight")) {
    return conv_taps(loader, prefix + ".conv1d.weight", all, sizes.conv_kernel, channels());
  }
  // Files have them by what they are of, or, as the reference writes them, all in three parts as even as it goes.
  const int64_t third = (all + 2) / 3;
  const bool is_even = loader.has_shape(prefix + ".q_conv1d.weight", {third, 1, sizes.conv_kernel});
  const int64_t counts[] = {is_even ? third : keys, is_even ? third : keys, is_even ? all - 2 * third : values};
  const char* names[] = {".q_conv1d.weight", ".k_conv1d.weight", ".v_conv1d.weight"};
  std::vector<float> parts[3];
  for (size_t i = 0; i < std::size(parts); ++i)
    parts[i] = conv_taps(loader, prefix + names[i], counts[i], sizes.conv_kernel, {{0, counts[i]}});
  std::vector<float> taps;
  if (std::ranges::any_of(parts, &std::vector<float>::empty)) return taps;  // planning, or missing
  for (int64_t tap = 0; tap < sizes.conv_kernel; ++tap) {
    std::vector<float> row;
    for (size_t i = 0; i < std::size(parts); ++i) {
      const auto first = parts[i].begin() + tap * counts[i];
      row.insert(row.end(), first, first + counts[i]);
    }
    const std::vector<float> own = taken_of(row, channels());
    taps.insert(taps.end(), own.begin(), own.end());
  }
  return taps;
}

Linear::Part GatedDeltaNet::by_key_heads(const std::string& name, const std::vector<int64_t>& own_rows,
                                         int64_t head_rows) const {
  const DeltaNetConfig& sizes = options_.sizes;
  const int64_t group = sizes.num_value_heads / sizes.num_key_heads;  // value heads of a key head
  const int64_t own = std::accumulate(own_rows.begin(), own_rows.end(), int64_t{0});
  const int64_t rows = own + 2 * group * head_rows;  // of a key head
  Linear::Part part{.prefix = name, .rows = sizes.num_key_heads * rows};
  int64_t offset = 0;
  for (const int64_t count : own_rows) {
    for (int64_t head = share_.kv_heads.first; head < share_.kv_heads.end(); ++head) {
      add_range({head * rows + offset, count}, part.taken);
    }
    offset += count;
  }
  for (const int64_t kind : {int64_t{0}, int64_t{1}}) {
    for (int64_t head = share_.heads.first; head < share_.heads.end(); ++head) {
      add_range({head / group * rows + own + (kind * group + head % group) * head_rows, head_rows}, part.taken);
    }
  }
  return part;
}

void GatedDeltaNet::load_small(Loader& loader, const std::string& prefix) {
  const DeltaNetConfig& sizes = options_.sizes;
  conv_ = {loader, load_taps(loader, prefix)};
  rates_ = {loader, recurrence_rates(loader, prefix, sizes.num_value_heads, {share_.heads})};
  decay_biases_ = {loader, taken_of(loader.vector(prefix + ".dt_bias", sizes.num_value_heads), {share_.heads})};
  const bool is_olmo = loader.has(prefix + ".o_norm.weight");
  norm_ = {loader, loader.vector(prefix + (is_olmo ? ".o_norm.weight" : ".norm.weight"), sizes.value_head_dim)};
}

void GatedDeltaNet::operator()(const StepContext& step, const CacheLayer& layer, const Rotary& /*rotary*/,
                               const ops::ConstView& x, const ops::View& out) const {
  const DeltaNetConfig& sizes = options_.sizes;
  const int64_t mark = step.workspace.mark();
  const int64_t n = x.num_rows;
  const ops::View projected = step.workspace.take(n, in_.out_features());
  in_(step, x, projected);
  const ops::View gates = projected.columns(num_channels(), value_size());
  const ops::View updates = projected.columns(num_channels() + value_size(), num_value_heads());
  const ops::View decays = projected.columns(num_channels() + value_size() + num_value_heads(), num_value_heads());

  layer.wait(step.backend);
  const ops::StateRuns runs = step.batch.runs_over(layer);
  const ops::View mixed = step.workspace.take(n, num_channels());
  const ops::ShortConvArgs conv{.runs = runs,
                                .in = projected.strided_floats(),
                                .in_stride = projected.row_stride,
                                .num_tokens = n,
                                .num_channels = num_channels(),
                                .kernel = sizes.conv_kernel,
                                .weight = conv_.data(),
                                .silu = true,
                                .out = mixed.floats(),
                                .out_stride = mixed.row_stride};
  step(conv);
  const ops::View heads = step.workspace.take(n, value_size());
  step(ops::RecurrenceArgs{.runs = runs,
                           .state_offset = conv.state_size(),
                           .num_tokens = n,
                           .num_key_heads = static_cast<int32_t>(num_key_heads()),
                           .num_value_heads = static_cast<int32_t>(num_value_heads()),
                           .key_dim = sizes.key_head_dim,
                           .value_dim = sizes.value_head_dim,
                           .heads_in_turns = sizes.heads_in_turns,
                           .queries = mixed.columns(0, key_size()).strided_floats(),
                           .keys = mixed.columns(key_size(), key_size()).strided_floats(),
                           .values = mixed.columns(2 * key_size(), value_size()).strided_floats(),
                           .token_stride = mixed.row_stride,
                           .updates = updates.strided_floats(),
                           .most_update = static_cast<float>(sizes.most_update),
                           .decays = decays.strided_floats(),
                           .gate_stride = projected.row_stride,
                           .rates = rates_.data(),
                           .decay_biases = decay_biases_.data(),
                           .normalises = true,
                           .scale = 1.0F / std::sqrt(static_cast<float>(sizes.key_head_dim)),
                           .out = heads.floats()});
  step(ops::RmsNormArgs{.hidden = heads.floats(),
                        .weight = norm_.data(),
                        .eps = static_cast<float>(options_.norm_eps),
                        .num_tokens = n,
                        .num_groups = num_value_heads(),
                        .size = sizes.value_head_dim,
                        .out = heads});
  step.gate(Activation::kSilu, gates, heads);
  out_(step, heads, out);
  step.workspace.rewind(mark);
}

}  // namespace quire::nn
