// How much a column of a matrix matters: the mean square of the inputs that it is multiplied by.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/step_context.h"
#include "ops/view.h"

namespace quire::quantize {

// By the names of modules as Hugging Face has them ("model.layers.0.self_attn.q_proj", "lm_head"); of experts each by
// itself ("model.layers.0.mlp.experts.3.up_proj").
class ImportanceMatrix {
 public:
  // x: rows that the module is multiplied by.
  void add(const std::string& module, const ops::ConstView& x);
  // [columns]; empty: nothing has reached this module.
  std::vector<float> of(std::string_view module) const;
  bool empty() const { return sums_.empty(); }
  // A number that two of the same content share.
  uint64_t hash() const;

 private:
  struct Sums {
    std::vector<double> squares;  // [columns]
    int64_t rows = 0;
  };
  std::map<std::string, Sums, std::less<>> sums_;
};

// Sees what the layers of a step are given, and adds nothing to what they make of it.
class InputObserver : public nn::RowAdapters {
 public:
  bool adapt(const nn::StepContext& step, const nn::AdaptableLayer& layer) const final;
  void add(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::ConstView& x,
           const ops::View& out) const final;
  void add_embedded(const nn::StepContext& step, const nn::AdaptableLayer& layer, Mirrored<TokenId> ids,
                    const ops::View& out) const final;
  void add_experts(const nn::StepContext& step, const nn::AdaptableLayer& layer, const ops::ConstView& x,
                   const int32_t* offsets, const ops::View& out) const final;
  void add_heads(const nn::StepContext& step, const nn::AdaptableLayer& layer, int32_t first, int32_t num_heads,
                 const HeadRows& rows) const final;
  void give_keys(const nn::StepContext& step, const nn::CacheLayer& layer) const final;

 protected:
  // The parts of `layer` from `first` on, `count` of them, are multiplied by the rows x.
  virtual void see(const nn::AdaptableLayer& layer, size_t first, size_t count, const ops::ConstView& x) const = 0;
};

// Notes the squares of all inputs.
class ImportanceObserver final : public InputObserver {
 public:
  explicit ImportanceObserver(ImportanceMatrix& matrix) : matrix_(matrix) {}

 protected:
  void see(const nn::AdaptableLayer& layer, size_t first, size_t count, const ops::ConstView& x) const override;

 private:
  ImportanceMatrix& matrix_;
};

}  // namespace quire::quantize
