// What the inputs of a matrix product are rounded to, as far as the weight's format has such products: whole numbers
// meet quantised weights alone, bfloat16 meets BF16 alone. F32 and F16 meet floats always.
#pragma once

#include <cstdint>

namespace quire {

enum class ActivationDType : uint8_t {
  kAuto,     // kInt12 for quantised weights, with AVX2 kInt16 where rounding matters most; floats for F32, F16 and BF16
  kFloat32,  // not rounded
  // 8 bits with a scale for every 16 values; with AVX2 kInt16 for codes of more than 6 bits, which leave no room for
  // sums.
  kInt8,
  // About 12 bits (with AVX2 11) with a scale for every 32 values; kInt16 for codes of more than 6 (with AVX2 4) bits.
  kInt12,
  kInt16,     // 16 bits with a scale for every 32 values
  kBFloat16,  // 8 significant bits each for weights of BF16; quantised weights as with kAuto
};

}  // namespace quire
