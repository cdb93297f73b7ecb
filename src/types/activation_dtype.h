// What the inputs of a matrix product with quantised weights are rounded to. Weights of F32, F16 and BF16 meet floats
// always.
#pragma once

#include <cstdint>

namespace quire {

enum class ActivationDType : uint8_t {
  kAuto,     // kInt8 where the weights' codes have at most 6 bits, else kInt16
  kFloat32,  // not rounded
  kInt8,     // 8 bits with a scale for every 16 values; kInt16 with codes of 8 bits, which leave no room for sums
  kInt16,    // 16 bits with a scale for every 32 values
};

}  // namespace quire
