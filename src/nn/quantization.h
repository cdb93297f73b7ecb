// What weights of 16 and 32 bits are rounded to while they are loaded: --quantization.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "types/engine_choices.h"

namespace quire::nn {

enum class WeightRole : uint8_t {
  kProjection,
  kHead,   // of the logits: never fewer than 8 bits
  kExact,  // stays as stored: routers and gates, few numbers that decide where a token goes
};

// What a weight with rows of `columns` values becomes; nullopt: it stays as stored.
//   int8  Q8_0
//   int4  Q4_K, or Q4_1 where rows are no multiple of 256; the head Q8_0
//   fp8   F8_E4M3 with a float for each row
// Rows that are no multiple of 32 stay where groups of 32 are rounded.
std::optional<DType> quantised_dtype(Quantization quantization, WeightRole role, int64_t columns);

// What quantising a model came to.
struct QuantizationReport {
  Quantization quantization = Quantization::kNone;
  int64_t num_matrices = 0;
  int64_t stored_bytes = 0;
  int64_t packed_bytes = 0;
  std::vector<DType> dtypes;  // each once
  int64_t num_kept = 0;       // that should have been quantised, but for the length of their rows
  int64_t kept_bytes = 0;
  double seconds = 0;  // 0: planned, not done

  // "int8: 211 matrices of 256.6 MiB to 136.3 MiB of Q8_0 in 0.31 s (0.9 GB/s)"; empty without quantisation.
  std::string to_string() const;
};

}  // namespace quire::nn
