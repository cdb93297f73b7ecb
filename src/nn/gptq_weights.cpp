#include "nn/gptq_weights.h"

#include <algorithm>
#include <array>

#include "checkpoint/quantization_config.h"

namespace quire::nn {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using checkpoint::QuantizationConfig;
using checkpoint::QuantMethod;

const QuantizationConfig* config_of(const Checkpoint& checkpoint, QuantMethod method, const WeightSpec& spec) {
  const QuantizationConfig* config = checkpoint.quantization();
  return config != nullptr && config->method == method && spec.shape.rank() == 2 ? config : nullptr;
}

// Bits and group of a module, as the configuration has them.
struct Coding {
  int bits;
  int64_t group;
};

Result<Coding> coding_of(const QuantizationConfig& config, const std::string& module, int64_t columns) {
  Coding coding{config.bits, config.group_size};
  for (const checkpoint::GptqOverride& one : config.overrides) {
    QUIRE_ASSIGN_OR_RETURN(const bool matches, one.pattern.matches(module));
    if (!matches) continue;
    if (one.skipped) {
      return data_loss("{}.qweight: quantization_config.dynamic says that {} is not quantised", module, module);
    }
    if (one.bits != 0) coding.bits = one.bits;
    if (one.group_size != 0) coding.group = one.group_size;
    break;
  }
  if (coding.bits != 2 && coding.bits != 3 && coding.bits != 4 && coding.bits != 8) {
    return unimplemented("{}.qweight has {} bits; supported: 2, 3, 4, 8", module, coding.bits);
  }
  if (coding.group <= 0 || coding.group > columns) coding.group = columns;
  return coding;
}

// Some files have a bias of zeros beside weights of models that have none.
void declare_empty_bias(const Checkpoint& checkpoint, const std::string& module, int64_t rows, DeclareTensor declare) {
  const CheckpointTensor* bias = checkpoint.find(module + ".bias");
  if (bias == nullptr || bias->view.data == nullptr || bias->view.shape != Shape{rows}) return;
  if (bias->view.dtype != DType::kF16 && bias->view.dtype != DType::kBF16 && bias->view.dtype != DType::kF32) return;
  for (int64_t i = 0; i < rows; ++i) {
    if (number_at(bias->view, i) != 0) return;
  }
  declare({.name = bias->name, .shape = {rows}, .optional = true});
}

// Declares what three tensors of these endings are. False: one of them is missing.
Result<bool> declare_parts(const std::string& module, const Shape& codes, const Shape& zeros, const Shape& scales,
                           DeclareTensor declare, StoredWeight& out) {
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* qweight,
                         declare_typed(declare, {module + ".qweight", codes}, {DType::kI32}));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* qzeros,
                         declare_typed(declare, {module + ".qzeros", zeros}, {DType::kI32}));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* numbers, declare_typed(declare, {module + ".scales", scales},
                                                                        {DType::kF16, DType::kBF16, DType::kF32}));
  if (qweight == nullptr || qzeros == nullptr || numbers == nullptr) return false;
  out.codes = qweight->view;
  out.zeros = qzeros->view;
  out.scales = numbers->view;
  return true;
}

int bits_of(const StoredWeight& weight) {
  return static_cast<int>(weight.codes.shape[0] * kWordBits / weight.stored_columns);
}

// The zero of an output, as it is stored.
int stored_zero(const StoredWeight& weight, int64_t group, int64_t row, int bits) {
  const auto* line = static_cast<const uint32_t*>(weight.zeros.data) + group * weight.zeros.shape[1];
  return packed_bits({line, DType::kI32, {}}, 1, 0, row * bits, bits);
}

// Where Marlin's tiles of 16 inputs by 64 outputs have their codes (Frantar and others, 2024): a thread of a card's
// warp finds what it multiplies in one load.
constexpr int64_t kMarlinTile = 16;
struct MarlinOrder {
  std::array<int16_t, 1024> codes;  // of code [input][output] of four squares of 16 beside each other
  std::array<int8_t, 64> group_scales;
  std::array<int8_t, 32> column_scales;  // where there is but one group
};
constexpr MarlinOrder marlin_order() {
  constexpr int kInterleaved[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  MarlinOrder order{};
  for (int thread = 0; thread < 32; ++thread) {
    for (int square = 0; square < 4; ++square) {
      for (int i = 0; i < 8; ++i) {
        const int code = kInterleaved[i];
        const int input = 2 * (thread % 4) + code % 2 + code % 4 / 2 * 8;
        const int output = thread / 4 + code / 4 * 8;
        order.codes[static_cast<size_t>(256 * square + 16 * input + output)] =
            static_cast<int16_t>(thread * 32 + square * 8 + i);
      }
    }
  }
  for (int i = 0; i < 64; ++i) order.group_scales[static_cast<size_t>(i / 8 + i % 8 * 8)] = static_cast<int8_t>(i);
  for (int i = 0; i < 32; ++i)
    order.column_scales[static_cast<size_t>(i / 8 * 2 + i % 2 + i % 8 / 2 * 8)] = static_cast<int8_t>(i);
  return order;
}

}  // namespace

int awq_code(const TensorView& words, int64_t line, int64_t column) {
  constexpr int kPlaces[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // of an output's code in its word
  const uint32_t word = static_cast<const uint32_t*>(words.data)[line * words.shape[1] + column / 8];
  return static_cast<int>(word >> (4 * kPlaces[column % 8]) & 15);
}

template <int kZeroOffset>
bool are_gptq(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& /*codes*/) {
  const QuantizationConfig* config = config_of(checkpoint, QuantMethod::kGptq, spec);
  return config != nullptr && !config->is_marlin && config->zeros_are_whole == (kZeroOffset == 0);
}
template bool are_gptq<0>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);
template bool are_gptq<1>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);

Status resolve_gptq(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string module = module_of(spec.name);
  const int64_t rows = spec.shape[0];
  const int64_t columns = spec.shape[1];
  const QuantizationConfig& config = *checkpoint.quantization();
  QUIRE_ASSIGN_OR_RETURN(const Coding coding, coding_of(config, module, columns));
  if (columns * coding.bits % kWordBits != 0 || rows * coding.bits % kWordBits != 0) {
    return unimplemented("{}.qweight: {} x {} codes of {} bits fill no whole words of 32 bits", module, rows, columns,
                         coding.bits);
  }
  const int64_t groups = groups_of(columns, coding.group);
  QUIRE_ASSIGN_OR_RETURN(const bool found,
                         declare_parts(module, {columns * coding.bits / kWordBits, rows},
                                       {groups, rows * coding.bits / kWordBits}, {groups, rows}, declare, out));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* group_index,
                         declare_typed(declare, {module + ".g_idx", {columns}, /*optional=*/true}, {DType::kI32}));
  declare_empty_bias(checkpoint, module, rows, declare);
  if (!found) return {};
  if (group_index != nullptr) out.permutation = group_index->view;
  CodedLayout layout{.rows = rows, .columns = columns, .bits = coding.bits, .group_columns = coding.group};
  layout.zeros_are_0 = coding.bits == 8;
  for (int64_t i = 0; layout.zeros_are_0 && i < groups * rows; ++i) {
    layout.zeros_are_0 = stored_zero(out, i / rows, i % rows, 8) + (config.zeros_are_whole ? 0 : 1) == 128;
  }
  return hold_codes(layout, out);
}

template <int kZeroOffset>
void unpack_gptq(const StoredWeight& weight, int64_t row, CodedRow& out) {
  const int bits = bits_of(weight);
  const int below = bits == 8 ? 128 : 0;
  const int64_t stride = weight.codes.shape[1];
  out.codes.resize(static_cast<size_t>(weight.stored_columns));
  for (int64_t i = 0; i < weight.stored_columns; ++i) {
    out.codes[static_cast<size_t>(i)] =
        static_cast<int16_t>(packed_bits(weight.codes, stride, row, i * bits, bits) - below);
  }
  for (int64_t group = 0; group < weight.scales.shape[0]; ++group) {
    out.zeros.push_back(static_cast<int16_t>(stored_zero(weight, group, row, bits) + kZeroOffset - below));
    out.scales.push_back(number_at(weight.scales, group * weight.scales.shape[1] + row));
  }
}
template void unpack_gptq<0>(const StoredWeight&, int64_t, CodedRow&);
template void unpack_gptq<1>(const StoredWeight&, int64_t, CodedRow&);

template <bool kGemv>
bool are_awq(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& /*codes*/) {
  const QuantizationConfig* config = config_of(checkpoint, QuantMethod::kAwq, spec);
  return config != nullptr && config->is_gemv == kGemv;
}
template bool are_awq<false>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);
template bool are_awq<true>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);

Status resolve_awq(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string module = module_of(spec.name);
  const int64_t rows = spec.shape[0];
  const int64_t columns = spec.shape[1];
  const QuantizationConfig& config = *checkpoint.quantization();
  const int64_t group = config.group_size <= 0 ? columns : std::min(config.group_size, columns);
  const int64_t groups = groups_of(columns, group);
  constexpr int64_t kCodes = 8;  // of a word
  if ((config.is_gemv ? columns : rows) % kCodes != 0) {
    return unimplemented("{}.qweight: {} x {} codes fill no whole words of {}", module, rows, columns, kCodes);
  }
  Shape codes = {columns, rows / kCodes};
  Shape zeros = {groups, rows / kCodes};
  Shape scales = {groups, rows};
  if (config.is_gemv) {
    const CheckpointTensor* stored = checkpoint.find(module + ".qzeros");
    const int64_t words = stored != nullptr && stored->view.shape.rank() == 2 ? stored->view.shape[1] : 0;
    codes = {rows, columns / kCodes};
    zeros = {rows, std::max(words, groups_of(groups, kCodes))};
    scales = {rows, zeros[1] * kCodes};
  }
  QUIRE_ASSIGN_OR_RETURN(const bool found, declare_parts(module, codes, zeros, scales, declare, out));
  if (!found) return {};
  return hold_codes({.rows = rows, .columns = columns, .group_columns = group}, out);
}

template <bool kGemv>
void unpack_awq(const StoredWeight& weight, int64_t row, CodedRow& out) {
  // Outputs or inputs come first.
  const auto code = [row](const TensorView& words, int64_t i) {
    return kGemv ? packed_bits(words, 1, row * words.shape[1], i * 4, 4) : awq_code(words, i, row);
  };
  for (int64_t i = 0; i < weight.stored_columns; ++i) out.codes.push_back(static_cast<int16_t>(code(weight.codes, i)));
  const TensorView& scales = weight.scales;
  for (int64_t group = 0; group < groups_of(weight.stored_columns, weight.scale_columns); ++group) {
    out.zeros.push_back(static_cast<int16_t>(code(weight.zeros, group)));
    const int64_t line = kGemv ? row : group;
    out.scales.push_back(number_at(scales, line * scales.shape[1] + (kGemv ? group : row)));
  }
}
template void unpack_awq<false>(const StoredWeight&, int64_t, CodedRow&);
template void unpack_awq<true>(const StoredWeight&, int64_t, CodedRow&);

bool are_marlin(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& /*codes*/) {
  const QuantizationConfig* config = config_of(checkpoint, QuantMethod::kGptq, spec);
  return config != nullptr && config->is_marlin;
}

Status resolve_marlin(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string module = module_of(spec.name);
  const int64_t rows = spec.shape[0];
  const int64_t columns = spec.shape[1];
  QUIRE_ASSIGN_OR_RETURN(const Coding coding, coding_of(*checkpoint.quantization(), module, columns));
  if (coding.bits != 4 || rows % 64 != 0 || columns % kMarlinTile != 0)
    return unimplemented("{}.B: {} x {} codes of {} bits; supported: 4 bits, outputs in whole times 64, inputs of 16",
                         module, rows, columns, coding.bits);
  const int64_t groups = groups_of(columns, coding.group);
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* codes,
                         declare_typed(declare, {module + ".B", {columns / kMarlinTile, rows * 2}}, {DType::kI32}));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                         declare_typed(declare, {module + ".s", {groups, rows}}, {DType::kF16}));
  declare_empty_bias(checkpoint, module, rows, declare);
  if (codes == nullptr || scales == nullptr) return {};
  out.codes = codes->view;
  out.scales = scales->view;
  return hold_codes({.rows = rows, .columns = columns, .group_columns = coding.group}, out);
}

void unpack_marlin(const StoredWeight& weight, int64_t row, CodedRow& out) {
  static constexpr MarlinOrder kOrder = marlin_order();
  const auto* words = static_cast<const uint32_t*>(weight.codes.data);
  for (int64_t i = 0; i < weight.stored_columns; ++i) {
    const int64_t at = row / kMarlinTile * 256 + i % kMarlinTile * kMarlinTile + row % kMarlinTile;
    const int64_t place = at / 1024 * 1024 + kOrder.codes[at % 1024];
    const uint32_t word = words[i / kMarlinTile * weight.codes.shape[1] + place / 8];
    out.codes.push_back(static_cast<int16_t>(word >> place % 8 * 4 & 15));
  }
  const int64_t groups = weight.scales.shape[0];
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t place =
        groups == 1 ? row / 32 * 32 + kOrder.column_scales[row % 32] : row / 64 * 64 + kOrder.group_scales[row % 64];
    out.scales.push_back(number_at(weight.scales, group * weight.scales.shape[1] + place));
    out.zeros.push_back(8);
  }
}

}  // namespace quire::nn
