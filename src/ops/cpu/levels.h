// The levels of formats whose codes of 4 bits look one up: plain data, for packing and for kernels alike.
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire::ops::cpu {

// Each says
//   kLevels  what codes stand for; a value is d * kFactor * s * level, s the whole number of the value's group
//   kOffset  what is added to levels where they are multiplied as unsigned numbers: a power of two, at least as large
//   as
//            any of them, and at most 32 (linear_codes.kernels.cpp); 0 for levels beyond that
struct Iq4Levels {
  static constexpr const int8_t (&kLevels)[16] = kIq4Levels;
  static constexpr float kFactor = 1.0f;
  static constexpr int kOffset = 0;
};

struct Mxfp4Levels {
  static constexpr const int8_t (&kLevels)[16] = kMxfp4Levels;
  static constexpr float kFactor = 1.0f;
  static constexpr int kOffset = 16;
};

// Of a grid's format bits 0 to 2 of a code are the magnitude's index, bit 3 is the sign; s is 2 (s + 1/2).
struct Iq2Levels {
  static constexpr int8_t kLevels[16] = {8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43, 0, 0, 0, 0, 0};
  static constexpr float kFactor = 0.125f;
  static constexpr int kOffset = 0;
};

// Halves of the magnitudes, which are even.
struct Iq3XxsLevels {
  static constexpr int8_t kLevels[16] = {2, 6, 10, 14, 18, 22, 26, 31, -2, -6, -10, -14, -18, -22, -26, -31};
  static constexpr float kFactor = 0.5f;
  static constexpr int kOffset = 32;
};

struct Iq3SLevels {
  static constexpr int8_t kLevels[16] = {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15};
  static constexpr float kFactor = 1.0f;
  static constexpr int kOffset = 16;
};

// Eight times -1, 0 or 1 (bits 0 and 1), and 1/8 more or (bit 2) less.
struct Iq1Levels {
  static constexpr int8_t kLevels[16] = {-7, 1, 9, 0, -9, -1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  static constexpr float kFactor = 0.125f;
  static constexpr int kOffset = 16;
};

// Codes of 2 bits.
struct TernaryLevels {
  static constexpr int8_t kLevels[16] = {-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  static constexpr float kFactor = 1.0f;
  static constexpr int kOffset = 1;
};

}  // namespace quire::ops::cpu
