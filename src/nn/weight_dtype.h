// What weights that are stored in 16 or 32 bits are held in: --dtype.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "types/engine_choices.h"

namespace quire::nn {

// nullopt of kAuto: each as it is stored.
std::optional<DType> wanted_dtype(WeightDType choice);

// What a weight is held in: `wanted` where it is stored as F32, F16 or BF16, else what it is stored as.
DType held_dtype(DType stored, std::optional<DType> wanted);

// What converting a model's weights came to.
class ConversionReport {
 public:
  void add_converted(int64_t stored_bytes, int64_t bytes);
  void add_kept(DType dtype, int64_t stored_bytes);
  // "41 weights of 200.0 MiB to 100.0 MiB; 12 of 50.0 MiB stay in their blocks of Q4_1"; empty: nothing was asked for.
  std::string to_string() const;

 private:
  int64_t num_converted_ = 0;
  int64_t stored_bytes_ = 0;
  int64_t bytes_ = 0;
  int64_t num_kept_ = 0;
  int64_t kept_bytes_ = 0;
  std::vector<DType> kept_;  // each once
};

}  // namespace quire::nn
