// Takes weights from where they are stored into the form that a backend holds them in; or, for a plan, says what that
// would take and reads nothing. All that is declared goes through one or the other.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/function_ref.h"
#include "nn/stored_weight.h"

namespace quire::nn {

struct HeldForm {
  DType dtype = DType::kF32;
  bool rounded = false;  // to `dtype` by Backend::quantise(), from what is stored
  bool operator==(const HeldForm&) const = default;
};

class WeightPlacer {
 public:
  // The backend must outlive them.
  static std::unique_ptr<WeightPlacer> loading(ops::Backend& backend);
  static std::unique_ptr<WeightPlacer> planning(ops::Backend& backend);
  virtual ~WeightPlacer() = default;

  struct Placed {
    std::unique_ptr<ops::PackedMatrix> matrix;  // nullptr of a plan
    int64_t bytes = 0;
    double seconds = 0;  // 0 of a plan
  };
  // The weight of one product out of parts above each other. Errors: as Backend::pack() and StoredWeight::read().
  virtual Result<Placed> matrix(std::span<const StoredWeight> parts, HeldForm form) = 0;
  // Rows to be read one by one; its file must stay mapped. A plan says shape and dtype. Errors: as Backend::table().
  virtual Result<ops::ResidentTable> table(const StoredWeight& rows, DType dtype) = 0;
  // Backend::weight_of() the table that was made of these rows; nullptr of a plan.
  virtual std::unique_ptr<ops::PackedMatrix> weight_of(const ops::ResidentTable& table, const TensorView& rows) = 0;
  // What `make` returns; nothing of a plan.
  virtual std::vector<float> floats(FunctionRef<std::vector<float>()> make) = 0;
};

}  // namespace quire::nn
