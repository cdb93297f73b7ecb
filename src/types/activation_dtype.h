// What the inputs of a matrix product are rounded to, as far as the weight's format has such products: whole numbers
// meet quantised weights alone, bfloat16 meets BF16 alone. F32 and F16 meet floats always.
#pragma once

#include <cstdint>

namespace quire {

enum class ActivationDType : uint8_t {
  // kInt8, but kInt16 for the head and down projections where their codes have 8 bits; kBFloat16 where the processor
  // has
  // products of it.
  kAuto,
  kFloat32,  // not rounded
  // 8 bits with a scale for every 16 values; with AVX2 kInt16 for codes of more than 6 bits, which leave no room for
  // sums.
  kInt8,
  kInt16,     // 16 bits with a scale for every 32 values
  kBFloat16,  // 8 significant bits each; quantised weights as with kAuto
};

}  // namespace quire
