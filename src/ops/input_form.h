// What becomes of a row of activations before it meets a weight: checkpoints of some formats say so. Part of the
// weight, so that whatever multiplies by it does the same.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace quire::ops {

// What numbers of a row are rounded to, and then are again: q * scale.
enum class RowRounding : uint8_t {
  kNone,
  kInt8,       // whole numbers of -128..127; a row's own scale is its largest magnitude over 127.5
  kInt8Range,  // the same from the row's least number to its largest, with a zero point
  kFloat8,     // F8_E4M3; a row's own scale is its largest magnitude over 448
  // LLM.int8() (Dettmers and others, 2022): numbers from `threshold` on stay; the others, as F16 has them, become whole
  // numbers of -127..127 with the largest of them as 127.
  kInt8Outliers,
  // 4-bit floats (E2M1) whose groups have a scale of F8_E4M3 each: the largest magnitude over 6, times `scale`, by
  // which numbers are multiplied, too.
  kFloat4,
  // The same floats in MX groups of 32: the scale is the power of two that has the largest magnitude, rounded to what
  // E2M1 has a fraction for, at an exponent of 2. Larger ones are then 6.
  kMxFloat4,
  // F8_E4M3 in such groups: the scale is the same power of two at an exponent of 8, and what is larger then 448.
  kMxFloat8,
};

struct InputForm {
  // Input i of the weight is number order[i] of the row; nullptr: as they come.
  std::shared_ptr<const std::vector<int32_t>> order = nullptr;
  RowRounding rounding = RowRounding::kNone;
  float scale = 0;    // the checkpoint's own; 0: each row's (or group's) from its numbers
  int32_t zero = 0;   // beside such a scale: what a number of 0 becomes
  int64_t group = 0;  // so many numbers share a scale; 0: all of a row
  float threshold = 0;
  float factor = 1;  // numbers are multiplied by it, last of all

  bool is_plain() const { return order == nullptr && rounding == RowRounding::kNone && factor == 1; }
  bool operator==(const InputForm& other) const;
};

// A row of k numbers as the weight takes it. REQUIRES: order, if any, has k entries of [0, k); x and out do not
// overlap.
void form_input(const InputForm& form, const float* x, int64_t k, float* out);

}  // namespace quire::ops
