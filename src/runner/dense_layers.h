// What sentence-transformers' Dense modules make of a pooled vector. One vector a text: small beside the model.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "checkpoint/sentence_files.h"

namespace quire::runner {

class DenseLayers {
 public:
  // Of vectors of `size` numbers; nullptr: there are none. Errors: data_loss where sizes do not follow from each other;
  // unimplemented for an activation, by name.
  static Result<std::shared_ptr<const DenseLayers>> make(std::vector<checkpoint::DenseModule> modules, int64_t size);

  // Sums are doubles, in one order. Thread-safe.
  std::vector<float> apply(std::vector<float> vector) const;
  int64_t out_features() const { return layers_.back().module.out_features; }
  int64_t bytes() const;

 private:
  using Function = double (*)(double);
  struct Layer {
    checkpoint::DenseModule module;
    Function activation;
  };
  std::vector<Layer> layers_;
};

}  // namespace quire::runner
