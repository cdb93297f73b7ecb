// Feed-forward blocks.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/linear.h"
#include "types/activation.h"

namespace quire::nn {

class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // What x is best given as.
  virtual DType input_dtype(const StepContext& step) const = 0;
  // x, out: [num_tokens, hidden_size]; may not overlap.
  virtual void operator()(const StepContext& step, const ops::ConstView& x, const ops::View& out) const = 0;
};

// What a rank has of the numbers between products, which are the inputs of the last one.
inline Range share_of_inner(Loader& loader, const Linear::Part& second, int64_t size) {
  const WeightSpec weight{second.prefix + ".weight", {second.rows, size}, second.transposed};
  return loader.share_of_columns(weight, size);
}

// down(f(gate(x)) * up(x)) (SwiGLU and its kin; Shazeer, 2020).
class GatedMlp final : public FeedForward {
 public:
  // Parameters "<prefix>.{gate,up,down}_proj". is_sum: as Linear::Inputs has it.
  GatedMlp(Loader& loader, const std::string& prefix, int64_t hidden_size, int64_t intermediate_size, bool bias,
           Activation function, bool is_sum = true)
      : GatedMlp(loader,
                 {.gate_up = {{prefix + ".gate_proj", intermediate_size, bias},
                              {prefix + ".up_proj", intermediate_size, bias}},
                  .down = {prefix + ".down_proj", hidden_size, bias}},
                 function, is_sum) {}
  // By names of the family's own: gate, then up, in one part or two.
  struct Parts {
    std::vector<Linear::Part> gate_up;
    Linear::Part down;
  };
  GatedMlp(Loader& loader, Parts parts, Activation function, bool is_sum = true) : function_(function) {
    const int64_t whole = rows_of(parts.gate_up) / 2;
    const Range own = share_of_inner(loader, parts.down, whole);
    intermediate_size_ = own.count;
    if (own.count < whole) take_rows({own, {whole + own.first, own.count}}, parts.gate_up);
    const int64_t hidden_size = parts.down.rows;
    gate_up_ = {loader, std::move(parts.gate_up), hidden_size};
    down_ = {loader, {std::move(parts.down)}, whole, WeightRole::kProjection, Linear::Inputs{own, is_sum}};
  }

  DType input_dtype(const StepContext& step) const override {
    return gate_up_.input_dtype(step, step.batch.num_tokens);
  }

  void operator()(const StepContext& step, const ops::ConstView& x, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    const int64_t n = x.num_rows;
    const ops::View gate_up = step.workspace.take(n, 2 * intermediate_size_).as(gate_up_.output_dtype(step, n));
    const ops::View activated = step.workspace.take(n, intermediate_size_).as(down_.input_dtype(step, n));
    gate_up_.gated(step, x, function_, gate_up, activated);
    down_(step, activated, out);
    step.workspace.rewind(mark);
  }

 private:
  static int64_t rows_of(const std::vector<Linear::Part>& parts) {
    int64_t rows = 0;
    for (const Linear::Part& part : parts) rows += part.rows;
    return rows;
  }

  // Of all parts above each other those rows.
  static void take_rows(const std::vector<Range>& rows, std::vector<Linear::Part>& parts) {
    int64_t first = 0;
    for (Linear::Part& part : parts) {
      part.taken = within(rows, {first, part.rows});
      first += part.rows;
    }
  }

  int64_t intermediate_size_;
  Activation function_;
  Linear gate_up_;
  Linear down_;
};

// The numbers of ops/xielu.h that a layer has.
struct Xielu {
  float positive = 0;
  float negative = 0;
  float beta = 0;
  float eps = 0;
};

// out(f(in(x))).
class PlainMlp final : public FeedForward {
 public:
  // `in`, `out`: one part each. is_sum: as Linear::Inputs has it. xielu: in the function's place.
  PlainMlp(Loader& loader, Linear::Part in, const Linear::Part& out, Activation function, bool is_sum = true,
           std::optional<Xielu> xielu = std::nullopt)
      : function_(function), xielu_(xielu) {
    const int64_t whole = in.rows;
    const Range own = share_of_inner(loader, out, whole);
    intermediate_size_ = own.count;
    if (own.count < whole) in.taken = {own};
    in_ = {loader, {std::move(in)}, out.rows};
    out_ = {loader, {out}, whole, WeightRole::kProjection, Linear::Inputs{own, is_sum}};
  }

  DType input_dtype(const StepContext& step) const override { return in_.input_dtype(step, step.batch.num_tokens); }

  void operator()(const StepContext& step, const ops::ConstView& x, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View inner = step.workspace.take(x.num_rows, intermediate_size_);
    in_(step, x, inner);
    activate(step, inner);
    out_(step, inner, out);
    step.workspace.rewind(mark);
  }

 private:
  void activate(const StepContext& step, const ops::View& inner) const {
    if (xielu_) {
      return step(ops::XieluArgs{.values = inner.floats(),
                                 .num_tokens = inner.num_rows,
                                 .size = inner.num_columns,
                                 .positive = xielu_->positive,
                                 .negative = xielu_->negative,
                                 .beta = xielu_->beta,
                                 .eps = xielu_->eps});
    }
    step(ops::ActivationArgs{.function = function_,
                             .gated = false,
                             .in = inner,
                             .num_tokens = inner.num_rows,
                             .size = inner.num_columns,
                             .out = inner});
  }

  int64_t intermediate_size_;
  Activation function_;
  std::optional<Xielu> xielu_;
  Linear in_;
  Linear out_;
};

}  // namespace quire::nn
