// What a layer is given for one step: what computes, what is computed, where. Layers take all of it, so that what comes
// to some rows of a batch alone, or to some layers, passes through those that know nothing of it.
#pragma once

#include <cstdint>
#include <iterator>
#include <span>

#include "nn/adaptable_layer.h"
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

  // Numbers of the host's where the device reads them: in the workspace, if it has memory of its own. They stay as they
  // are until the step is done.
  Mirrored<int32_t> mirrored(std::span<const int32_t> numbers) const {
    if (backend.computes_in_host_memory()) return numbers.data();
    static_assert(sizeof(int32_t) == sizeof(float));
    float* const place = workspace.take(1, std::ssize(numbers)).floats();
    if (!workspace.measures()) backend.copy_to_device(place, numbers.data(), {.row_bytes = numbers.size_bytes()});
    return {numbers.data(), reinterpret_cast<const int32_t*>(place)};
  }

  // Copies numbers, of views of the same shape whose rows may lie at any distance.
  void copy(const ops::ConstView& from, const ops::View& to) const {
    (*this)(ops::CopyHeadsArgs{.in = from.strided_floats(),
                               .in_token_stride = from.row_stride,
                               .in_head_stride = from.num_columns,
                               .num_tokens = from.num_rows,
                               .num_heads = 1,
                               .size = from.num_columns,
                               .out = to.strided_floats(),
                               .out_token_stride = to.row_stride,
                               .out_head_stride = to.num_columns});
  }

  // values *= function(gates), numbers, views of the same shape whose rows may lie at any distance.
  void gate(Activation function, const ops::ConstView& gates, const ops::View& values) const {
    (*this)(ops::GateArgs{.function = function,
                          .gates = gates.strided_floats(),
                          .gate_stride = gates.row_stride,
                          .values = values.strided_floats(),
                          .value_stride = values.row_stride,
                          .num_tokens = values.num_rows,
                          .size = values.num_columns});
  }

  // values *= factors, one for each column of them.
  void multiply(const float* factors, const ops::View& values) const {
    (*this)(ops::GateArgs{.function = Activation::kIdentity,
                          .gates = factors,
                          .values = values.strided_floats(),
                          .value_stride = values.row_stride,
                          .num_tokens = values.num_rows,
                          .size = values.num_columns});
  }

  // The same step for rows that are of these tokens, or of none.
  StepContext of_rows(RowTokens others) const {
    StepContext step = *this;
    step.rows = others;
    return step;
  }
  // Whether `adapters` add to what this layer makes of such rows. nullptr: a layer that none can add to.
  bool adapts(const AdaptableLayer* layer) const;
};

// Low-rank adapters by row (LoRA; Hu et al., 2021). A product that any of its rows adapts is not fused with what
// follows it, so that there is a place to add to it.
class RowAdapters {
 public:
  virtual ~RowAdapters() = default;
  // Whether any of the step's rows has an adapter for `layer`.
  virtual bool adapt(const StepContext& step, const AdaptableLayer& layer) const = 0;
  // out += the adapters' products of x, row by row: x [rows, in_features], out [rows, out_features]. Of a row whose
  // adapter has a weight of its own for this layer (a head that was trained with it) out becomes that one's product.
  virtual void add(const StepContext& step, const AdaptableLayer& layer, const ops::ConstView& x,
                   const ops::View& out) const = 0;
  // out = the product of x, with what add() adds to it; `product` is of the whole layer.
  virtual void multiply(const StepContext& step, const AdaptableLayer& layer, const ops::LinearArgs& product,
                        const ops::ConstView& x, const ops::View& out) const {
    step(product);
    add(step, layer, x, out);
  }
  // The same as add() of kEmbedding, whose rows are of these ids.
  virtual void add_embedded(const StepContext& step, const AdaptableLayer& layer, Mirrored<TokenId> ids,
                            const ops::View& out) const = 0;
  // The same of kExperts: rows [offsets[e], offsets[e + 1]) are expert e's, offsets on the device.
  virtual void add_experts(const StepContext& step, const AdaptableLayer& layer, const ops::ConstView& x,
                           const int32_t* offsets, const ops::View& out) const = 0;
  // The same of kHeads: products [first, first + num_heads) of the layer, each of its head's columns.
  struct HeadRows {
    ops::ConstView x;    // [rows, heads side by side]
    int64_t x_head = 0;  // columns from one head's to the next's
    ops::View out;
    int64_t out_head = 0;
  };
  virtual void add_heads(const StepContext& step, const AdaptableLayer& layer, int32_t first, int32_t num_heads,
                         const HeadRows& rows) const = 0;
  // Keys and values that adapters give in the place of computed ones: what the layer's cache has for the step's rows
  // has just been written, and is not read yet. `layer`: of the batch's.
  virtual void give_keys(const StepContext& step, const CacheLayer& layer) const = 0;
};

inline bool StepContext::adapts(const AdaptableLayer* layer) const {
  return adapters != nullptr && layer != nullptr && adapters->adapt(*this, *layer);
}

}  // namespace quire::nn
