// y = x W^T + b, for one weight or several that share their input (QKV, gate and up).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "nn/parameter.h"
#include "nn/step_context.h"
#include "types/activation.h"

namespace quire::nn {

class Linear {
 public:
  Linear() = default;
  // Parameters "<prefix>.weight" [rows, in_features] and, with bias, "<prefix>.bias" [rows].
  struct Part {
    std::string prefix;
    int64_t rows = 0;
    bool bias = false;
    bool transposed = false;  // the weight is stored as [in_features, rows]
    // Of a product that is cut by its outputs: rows that this rank has, in this order; none: all.
    std::vector<Range> taken = {};

    int64_t num_taken() const {
      if (taken.empty()) return rows;
      int64_t count = 0;
      for (const Range& range : taken) count += range.count;
      return count;
    }
  };
  // Of a product that is cut by its inputs.
  struct Inputs {
    Range taken;         // those of this rank
    bool is_sum = true;  // the outputs are added up over all ranks; false: by the caller, later
  };
  // Parts that a checkpoint keeps as one matrix (see the table in linear.cpp) may be given by their own names.
  // A head (WeightRole::kHead) is cut by itself wherever there are several ranks: rank 0 is given all of its outputs,
  // the others have their own alone.
  Linear(Loader& loader, std::vector<Part> parts, int64_t in_features, WeightRole role = WeightRole::kProjection,
         std::optional<Inputs> inputs = std::nullopt);
  Linear(Loader& loader, const std::string& prefix, int64_t in_features, int64_t out_features, bool bias = false,
         WeightRole role = WeightRole::kProjection)
      : Linear(loader, std::vector<Part>{{prefix, out_features, bias}}, in_features, role) {}

  // Its inputs have outliers, or its outputs decide much: ops::LinearArgs::precise.
  void keep_inputs_precise() { precise_ = true; }

  // x: [rows, in_features] -> out: [rows, out_features].
  void operator()(const StepContext& step, const ops::ConstView& x, const ops::View& out) const;

  // out = f(first half of the outputs) * second half, [rows, out_features / 2]; `products`: scratch of all outputs.
  // Both dense.
  void gated(const StepContext& step, const ops::ConstView& x, Activation function, const ops::View& products,
             const ops::View& out) const;

  // What x is best given as (Backend::input_dtype()): F32 where the segments do not agree, or adapters add to it.
  DType input_dtype(const StepContext& step, int64_t num_rows) const;
  // What out may be given as: BF16 where inputs have no more digits (F16 has not room for every number) and nothing is
  // to be added, else F32.
  DType output_dtype(const StepContext& step, int64_t num_rows) const {
    const DType input = input_dtype(step, num_rows);
    const bool rounds = bias_.empty() && (input == DType::kBF16 || input == DType::kF8E4M3);
    return rounds ? DType::kBF16 : DType::kF32;
  }

  // Adds up over all ranks what each has computed of `out`, dense floats; nothing where there is one.
  static void sum(const StepContext& step, const ops::View& out);

  // What adapters know it by.
  const AdaptableLayer* layer() const { return layer_.get(); }
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }

 private:
  // The product of a segment whose outputs begin at `offset`.
  ops::LinearArgs product_of(const ops::PackedMatrix& segment, const ops::ConstView& x, int64_t offset,
                             const ops::View& out) const;

  int64_t in_features_ = 0;   // of this rank
  int64_t out_features_ = 0;  // of this rank, but of a head all
  bool precise_ = false;
  bool is_sum_ = false;
  std::vector<comm::ColumnRange> columns_;  // of a head that is cut: each rank's outputs
  std::vector<std::unique_ptr<ops::PackedMatrix>> segments_;
  Parameter bias_;  // [out_features] or empty
  std::shared_ptr<const AdaptableLayer> layer_;
};

}  // namespace quire::nn
