// The gated feed-forward block: down(silu(gate(x)) * up(x)) (SwiGLU; Shazeer, 2020).
#pragma once

#include <string>

#include "nn/linear.h"
#include "nn/workspace.h"

namespace quire::nn {

class GatedMlp {
 public:
  GatedMlp() = default;
  // Parameters "<prefix>.{gate,up,down}_proj".
  GatedMlp(Loader& loader, const std::string& prefix, int64_t hidden_size, int64_t intermediate_size, bool bias)
      : intermediate_size_(intermediate_size),
        gate_up_(loader,
                 {{prefix + ".gate_proj", intermediate_size, bias}, {prefix + ".up_proj", intermediate_size, bias}},
                 hidden_size),
        down_(loader, prefix + ".down_proj", intermediate_size, hidden_size, bias) {}

  // x, out: [num_tokens, hidden_size]; may not overlap.
  void operator()(ops::Backend& backend, const float* x, int64_t num_tokens, float* out, Workspace& workspace) const {
    const int64_t mark = workspace.mark();
    float* gate_up = workspace.take(num_tokens * 2 * intermediate_size_);
    float* activated = workspace.take(num_tokens * intermediate_size_);
    gate_up_(backend, x, num_tokens, gate_up);
    backend(ops::SiluAndMulArgs{.in = gate_up, .num_tokens = num_tokens, .size = intermediate_size_, .out = activated});
    down_(backend, activated, num_tokens, out);
    workspace.rewind(mark);
  }

  static int64_t workspace_floats(int64_t intermediate_size, int64_t num_tokens) {
    return Workspace::rounded(num_tokens * 2 * intermediate_size) + Workspace::rounded(num_tokens * intermediate_size);
  }

 private:
  int64_t intermediate_size_ = 0;
  Linear gate_up_;
  Linear down_;
};

}  // namespace quire::nn
