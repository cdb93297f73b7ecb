// A sparse feed-forward block: a router, experts of which each token takes a few (Shazeer et al., 2017), and for some
// families an expert that all tokens take.
#pragma once

#include <memory>
#include <string>

#include "nn/expert_linear.h"
#include "nn/mlp.h"
#include "types/model_config.h"

namespace quire::nn {

struct MoeOptions {
  MoeConfig moe;
  int64_t hidden_size = 0;
  int64_t router_size = 0;  // of what the router reads, where run() is given other numbers for it; 0: hidden_size
  Activation activation = Activation::kSilu;
  bool shared_bias = false;  // of the shared expert's projections
  // See ExpertShape.
  bool stacks_transposed = false;
  bool stacks_interleaved = false;
};

class MoeBlock final : public FeedForward {
 public:
  // Parameters behind `prefix` ("model.layers.0."), under the names that moe.cpp and expert_linear.cpp list.
  MoeBlock(Loader& loader, const std::string& prefix, const MoeOptions& options);

  // Routers want more than 16 bits.
  DType input_dtype(const StepContext& /*step*/) const override { return DType::kF32; }
  void operator()(const StepContext& step, const ops::ConstView& x, const ops::View& out) const override {
    run(step, x, x, out);
  }
  // The same where the router reads other numbers than the experts do.
  void run(const StepContext& step, const ops::ConstView& for_router, const ops::ConstView& x,
           const ops::View& out) const;

 private:
  // Of the step, in the workspace: see ops/moe_routing.h.
  struct Routes {
    float* weights;
    int32_t* rows;
    int32_t* tokens;
    int32_t* offsets;
  };
  Routes route(const StepContext& step, const ops::ConstView& x) const;
  // rows: the experts' inputs, one for each pair of token and expert.
  void hand_out(const StepContext& step, const ops::ConstView& x, const Routes& routes, const ops::View& rows) const;
  // out, which has what the shared expert gives: with what the experts give, `rows`.
  void gather(const StepContext& step, const Routes& routes, const ops::View& rows, const ops::View& shared_gate,
              const ops::View& out) const;
  void activate(const StepContext& step, const ops::ConstView& in, const ops::View& out) const;

  MoeOptions options_;
  Range experts_;  // those that this rank has
  Linear router_;
  Parameter correction_bias_;  // [num_experts] or empty
  Parameter expert_scales_;    // the same
  ExpertLinear gate_and_up_;
  ExpertLinear down_;
  std::unique_ptr<FeedForward> shared_;
  Linear shared_gate_;  // [1, hidden_size]; or none
};

}  // namespace quire::nn
