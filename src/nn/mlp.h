// Feed-forward blocks.
#pragma once

#include <string>

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

// down(f(gate(x)) * up(x)) (SwiGLU and its kin; Shazeer, 2020).
class GatedMlp final : public FeedForward {
 public:
  // Parameters "<prefix>.{gate,up,down}_proj".
  GatedMlp(Loader& loader, const std::string& prefix, int64_t hidden_size, int64_t intermediate_size, bool bias,
           Activation function)
      : intermediate_size_(intermediate_size),
        function_(function),
        gate_up_(loader,
                 {{prefix + ".gate_proj", intermediate_size, bias}, {prefix + ".up_proj", intermediate_size, bias}},
                 hidden_size),
        down_(loader, prefix + ".down_proj", intermediate_size, hidden_size, bias) {}

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
  int64_t intermediate_size_;
  Activation function_;
  Linear gate_up_;
  Linear down_;
};

// out(f(in(x))).
class PlainMlp final : public FeedForward {
 public:
  // `in`, `out`: one part each.
  PlainMlp(Loader& loader, const Linear::Part& in, const Linear::Part& out, Activation function)
      : intermediate_size_(in.rows), function_(function), in_(loader, {in}, out.rows), out_(loader, {out}, in.rows) {}

  DType input_dtype(const StepContext& step) const override { return in_.input_dtype(step, step.batch.num_tokens); }

  void operator()(const StepContext& step, const ops::ConstView& x, const ops::View& out) const override {
    const int64_t mark = step.workspace.mark();
    const ops::View inner = step.workspace.take(x.num_rows, intermediate_size_);
    in_(step, x, inner);
    step(ops::ActivationArgs{.function = function_,
                             .gated = false,
                             .in = inner,
                             .num_tokens = inner.num_rows,
                             .size = inner.num_columns,
                             .out = inner});
    out_(step, inner, out);
    step.workspace.rewind(mark);
  }

 private:
  int64_t intermediate_size_;
  Activation function_;
  Linear in_;
  Linear out_;
};

}  // namespace quire::nn
