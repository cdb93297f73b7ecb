// What a layer is given for one step: what computes, what is computed, where. Layers take all of it, so that what comes
// to some rows of a batch alone, or to some layers, passes through those that know nothing of it.
#pragma once

#include <cstdint>

#include "nn/batch.h"
#include "nn/workspace.h"
#include "ops/backend.h"

namespace quire::comm {
class Communicator;
}

namespace quire::nn {

class HiddenTaps;
class RowAdapters;

// Which tokens of the batch the rows are that a layer is given.
struct RowTokens {
  enum class Kind : uint8_t {
    kBatch,     // all of them, in order
    kGathered,  // row i is of token tokens[i]
    kNone,      // those of an earlier batch, or of none
  };
  Kind kind = Kind::kBatch;
  Mirrored<int32_t> tokens;  // kGathered: [rows]
};

// The caller's, all of it.
struct StepContext {
  ops::Backend& backend;
  const Batch& batch;
  Workspace& workspace;
  RowTokens rows = {};
  const RowAdapters* adapters = nullptr;       // what requests add to the products of their rows; nullptr: none do
  comm::Communicator* communicator = nullptr;  // ranks that have the other parts of the weights; nullptr: none
  HiddenTaps* taps = nullptr;                  // who else wants the states between layers; nullptr: nobody

  // Runs an op, unless the step is there to be measured.
  template <typename Args>
  void operator()(const Args& args) const {
    if (!workspace.measures()) backend(args);
  }

  // The same step for rows that are of these tokens, or of none.
  StepContext of_rows(RowTokens others) const {
    StepContext step = *this;
    step.rows = others;
    return step;
  }
  // Whether `adapters` add to what this layer makes of such rows.
  bool adapts(const void* layer) const;
};

// Low-rank adapters by row (LoRA; Hu et al., 2021). A product that any of its rows adapts is not fused with what
// follows it, so that there is a place to add to it.
class RowAdapters {
 public:
  virtual ~RowAdapters() = default;
  // Whether any of the step's rows has an adapter for `layer`: a Linear or ExpertLinear, by its address.
  virtual bool adapt(const StepContext& step, const void* layer) const = 0;
  // out += the adapters' products of x, row by row: x [rows, in_features], out [rows, out_features].
  virtual void add(const StepContext& step, const void* layer, const ops::ConstView& x, const ops::View& out) const = 0;
};

inline bool StepContext::adapts(const void* layer) const {
  return adapters != nullptr && adapters->adapt(*this, layer);
}

}  // namespace quire::nn
