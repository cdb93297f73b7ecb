#include "nn/gated_short_conv.h"

#include "nn/conv_taps.h"

namespace quire::nn {
namespace {

// The same part of every rank, as near as it goes: caches are laid out alike where layers keep the same share of
// theirs.
Range own_channels(Loader& loader, const Linear::Part& output) {
  const WeightSpec weight{output.prefix + ".weight", {output.rows, output.rows}};
  return loader.share_of_columns(weight, output.rows);
}

}  // namespace

GatedShortConv::GatedShortConv(Loader& loader, const std::string& prefix, const ShortConvConfig& sizes,
                               int64_t hidden_size)
    : kernel_(sizes.kernel) {
  const Linear::Part output{prefix + ".out_proj", hidden_size, sizes.bias};
  const Range own = own_channels(loader, output);
  num_channels_ = own.count;
  Linear::Part input{prefix + ".in_proj", 3 * hidden_size, sizes.bias};
  if (!loader.shard().is_whole()) {
    for (const int64_t first : {int64_t{0}, hidden_size, 2 * hidden_size})
      input.taken.push_back({first + own.first, own.count});
  }
  in_ = {loader, {std::move(input)}, hidden_size};
  in_.keep_inputs_precise();  // three of its outputs are multiplied, and with them their errors
  taps_ = {loader, conv_taps(loader, prefix + ".conv.weight", hidden_size, kernel_, {own})};
  if (sizes.bias) {
    const Loader::Vector bias{prefix + ".conv.bias", hidden_size, {own}};
    bias_ = {loader, loader.vectors({&bias, 1})};
  }
  out_ = {loader, {output}, hidden_size, WeightRole::kProjection, Linear::Inputs{own}};
}

void GatedShortConv::operator()(const StepContext& step, const CacheLayer& layer, const Rotary& /*rotary*/,
                                const ops::ConstView& x, const ops::View& out) const {
  const int64_t mark = step.workspace.mark();
  const int64_t n = x.num_rows;
  const ops::View projected = step.workspace.take(n, in_.out_features());
  in_(step, x, projected);
  const ops::View values = projected.columns(2 * num_channels_, num_channels_);
  step.gate(Activation::kIdentity, projected.columns(0, num_channels_), values);

  layer.wait(step.backend);
  const ops::View mixed = step.workspace.take(n, num_channels_);
  step(ops::ShortConvArgs{.runs = step.batch.runs_over(layer),
                          .in = values.strided_floats(),
                          .in_stride = values.row_stride,
                          .num_tokens = n,
                          .num_channels = num_channels_,
                          .kernel = kernel_,
                          .weight = taps_.data(),
                          .bias = bias_.data(),
                          .out = mixed.floats(),
                          .out_stride = mixed.row_stride});
  step.gate(Activation::kIdentity, projected.columns(num_channels_, num_channels_), mixed);
  out_(step, mixed, out);
  step.workspace.rewind(mark);
}

}  // namespace quire::nn
