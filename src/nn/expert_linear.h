// One projection of all experts of a mixture: gate and up, or down. Each expert's matrix is packed in its own format as
// a Linear's is; the experts of a layer are never expanded. Neighbours of one format are one op's.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nn/parameter.h"
#include "nn/shard.h"
#include "nn/step_context.h"

namespace quire::nn {

struct ExpertShape {
  int32_t num_experts = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  bool gated = true;  // false: of the first projection there is up alone
  bool bias = false;  // REQUIRES: gated
  // How stacks of gate and up in one tensor are stored: [experts, in, out] in place of [experts, out, in], and the rows
  // of gate and up in turns in place of gate's above up's.
  bool stacks_transposed = false;
  bool stacks_interleaved = false;
  // Of intermediate_size what this rank has, in every expert it has; all of it where nothing is cut.
  Range own = {};
  // The experts that this rank has; all where none are named.
  Range experts = {};

  Range own_size() const { return own.count == 0 ? Range{0, intermediate_size} : own; }
  Range own_experts() const { return experts.count == 0 ? Range{0, num_experts} : experts; }
};

class ExpertLinear {
 public:
  ExpertLinear() = default;

  // Which of the spellings in expert_linear.cpp the checkpoint has decides the names behind `prefix` ("...mlp."):
  // tensors of each expert, stacks of them, MXFP4 in blocks and scales.
  // This rank's part: its experts, all of each, or of all experts a part of the intermediate size, where the down
  // projections can be cut. No such part: the loader fails.
  static void share(Loader& loader, const std::string& prefix, ExpertShape& shape);
  static ExpertLinear gate_and_up(Loader& loader, const std::string& prefix, const ExpertShape& shape);
  // Of several ranks what it gives is to be added up.
  static ExpertLinear down(Loader& loader, const std::string& prefix, const ExpertShape& shape);

  // x: [rows, in_features] sorted by expert (ops/moe_routing.h) -> out: [rows, out_features]; rows of experts that
  // other ranks have are left alone. The step says which tokens the rows are of.
  void operator()(const StepContext& step, const ops::ConstView& x, const int32_t* offsets, const ops::View& out) const;

 private:
  // Experts one behind the other whose matrices are held alike: checkpoints leave some experts out of what they round,
  // or have them in other bits.
  struct Run {
    Range experts;
    std::vector<std::vector<const ops::PackedMatrix*>> segments = {};  // rows of one dtype: [segments][experts]
    std::vector<std::unique_ptr<ops::PackedGroup>> groups = {};        // [segments]
  };
  // The matrices of each expert here. Those of one that are held alike become one, where it is so of all of a run.
  using Parts = std::vector<StoredWeight>;
  void pack_all(Loader& loader, std::vector<Parts> experts);
  void pack_run(Loader& loader, int64_t first, std::span<const Parts> experts);
  void finish(Loader& loader, std::span<const float> bias);
  // `stems`: of each expert's modules, whose outputs lie side by side; `parameter`, `interleaved`: of their stack.
  // inputs, rows: of a module what this rank has.
  struct Modules {
    std::vector<std::string_view> stems;
    std::string_view parameter;
    bool interleaved = false;
    HeldPart inputs;
    HeldPart rows;
  };
  void name_modules(Loader& loader, const std::string& prefix, const Modules& modules);

  int32_t num_experts_ = 0;  // of all ranks
  Range experts_;            // those here
  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  std::vector<std::unique_ptr<ops::PackedMatrix>> matrices_;
  std::vector<Run> runs_;
  Parameter bias_;  // [experts here, out_features] or empty
  std::shared_ptr<const AdaptableLayer> layer_;
};

}  // namespace quire::nn
