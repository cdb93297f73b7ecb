// Weights that take more memory than they have bytes in the checkpoint: of formats that products read in a wider form.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace quire::nn {

class WidenedWeights {
 public:
  void add(DType dtype, int64_t tensors, int64_t stored_bytes, int64_t packed_bytes);
  // "IQ2_XXS: 112 matrices of 1.81 GiB in the file take 3.79 GiB", types apart by "; "; empty where there are none.
  std::string to_string() const;

 private:
  struct Type {
    DType dtype;
    int64_t tensors = 0;
    int64_t stored_bytes = 0;
    int64_t packed_bytes = 0;
  };
  std::vector<Type> types_;
};

}  // namespace quire::nn
