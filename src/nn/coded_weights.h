// What the layouts of AWQ, GPTQ, compressed-tensors and bitsandbytes have in common: codes of at most 8 bits, columns
// in groups that share a scale and a zero. A layout says where a row's codes lie (CodedRow); how they are held, in
// which order of columns, and as which numbers they are read is the same for all.
#pragma once

#include <vector>

#include "nn/weight_formats.h"

namespace quire::nn {

// A stored row, taken apart: value i = (codes[i] - zeros[g]) * scales[g], g being its group; levels[codes[i]] in place
// of the code where there are levels.
struct CodedRow {
  std::vector<int16_t> codes;  // of all stored columns; 8 bits are -128..127, or 0..255 where zeros are fractions
  std::vector<float> scales;   // of each group
  std::vector<float> zeros;    // the same; whole numbers unless the layout says otherwise
  const float* levels = nullptr;
};

struct CodedLayout {
  int64_t rows = 0;
  int64_t columns = 0;
  int bits = 4;                  // 8, or at most 4
  int64_t group_columns = 0;     // that share a scale: as many as there are, or fewer
  bool zeros_are_0 = false;      // of 8 bits: every row's
  DType levels = DType::kU4_32;  // NF4 or FP4: codes stand for levels
  bool zeros_are_fractions = false;
  bool scales_as_stored = true;  // false: what is stored is made the scale by another factor
};

// Chooses what the codes are held as, out of codes, scales and permutation, which are set: codes of 4 or 8 bits in the
// widest blocks that groups and rows are whole times of; numbers where there are none such. Sets the layout, and the
// order of the inputs where groups are no neighbours. Errors: data_loss for a permutation of other groups than there
// are.
Status hold_codes(const CodedLayout& layout, StoredWeight& out);

// What weights of both forms can be held as without loss: blocks of codes that are narrower or whose scales are wider,
// or else numbers.
DType common_form(DType first, DType second);
// As common_form() said for it and others, as far as its format allows.
void hold_as(DType form, StoredWeight& weight);

// WeightFormat::read of a row: `form` is the weight's form(), or F32.
void write_coded_row(const StoredWeight& weight, const CodedRow& row, DType form, uint8_t* out);

using UnpackRow = void (*)(const StoredWeight& weight, int64_t row, CodedRow& out);
template <UnpackRow kUnpack>
void read_codes(const StoredWeight& weight, int64_t row, DType form, uint8_t* out) {
  CodedRow unpacked;
  kUnpack(weight, row, unpacked);
  write_coded_row(weight, unpacked, form, out);
}

// WeightFormat::form: what hold_codes() chose.
DType form_of_codes(const StoredWeight& weight);

inline constexpr int kWordBits = 32;

// `bits` bits of the words [word][stride], the lowest first, from bit `at` on.
inline int packed_bits(const TensorView& words, int64_t stride, int64_t column, int64_t at, int bits) {
  const auto* from = static_cast<const uint32_t*>(words.data) + at / 32 * stride + column;
  uint32_t found = *from >> at % 32;
  if (at % 32 + bits > 32) found |= from[stride] << (32 - at % 32);
  return static_cast<int>(found & ((1u << bits) - 1));
}

// "model.layers.0.mlp.down_proj" of its weight.
std::string module_of(std::string_view weight);
int64_t groups_of(int64_t columns, int64_t group_columns);
float number_at(const TensorView& numbers, int64_t index);

// Of codes that are stored transposed, as GPT-2's matrices are, `count` of one column from `first` on: a row of what is
// meant.
template <typename Code>
std::vector<Code> column_of(const TensorView& codes, int64_t column, int64_t first, int64_t count) {
  const int64_t stride = codes.shape[1];
  std::vector<Code> found(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    found[static_cast<size_t>(i)] = static_cast<const Code*>(codes.data)[(first + i) * stride + column];
  return found;
}
// Errors: unimplemented for codes that are stored transposed with other scales than one number, since writers do not
// agree on which side theirs are.
Status expect_one_scale(const checkpoint::CheckpointTensor& scales);

// Declares a tensor of one of these types. nullptr: there is none of that shape. Errors: data_loss for another type.
Result<const checkpoint::CheckpointTensor*> declare_typed(DeclareTensor declare, checkpoint::ParameterSpec tensor,
                                                          std::initializer_list<DType> types);

}  // namespace quire::nn
