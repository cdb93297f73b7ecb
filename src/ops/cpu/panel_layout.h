// The bytes of a block of one tile in packed_panels.h, by format.
#pragma once

#include <cstdint>
#include <optional>

#include "tensor/dtype.h"

namespace quire::ops::cpu {

struct PanelLayout {
  int32_t block_steps;     // steps of k a block: 1, 2, 32, 64, 128 or 256
  int32_t value_bytes;     // of a format of single numbers; 0: codes
  int32_t heads;           // numbers a column before the groups: d, or d and m
  int32_t head_bytes = 2;  // of each: f16, or f32
  int32_t zero_bytes = 0;  // bytes a column behind them: of what is taken off codes
  int32_t small_scales;    // bytes a column and group
  int32_t low_bits;        // of a code: 2, 4 or 8, in planes of their own
  int32_t high_bits;       // 0, 1 or 2
  int32_t panel_scales;    // bytes a column behind a panel's blocks for each of the row's floats (ops/quantise.h)

  constexpr int32_t groups() const { return block_steps / 32; }
  // Bytes a column and block.
  constexpr int32_t column_bytes() const {
    if (value_bytes > 0) return block_steps * value_bytes;
    return heads * head_bytes + zero_bytes + groups() * (small_scales + (low_bits + high_bits) * 4);
  }
};

// Of the formats of coded weights, whose blocks have one head each.
constexpr PanelLayout coded_panel_layout(DType dtype) {
  const CodedBlock block = coded_block(dtype);
  return {.block_steps = info(dtype).block_values,
          .heads = 1,
          .head_bytes = block.head_bytes,
          .zero_bytes = block.zero_bytes,
          .low_bits = block.bits};
}

// nullopt: no panels.
constexpr std::optional<PanelLayout> panel_layout(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return PanelLayout{.block_steps = 1, .value_bytes = 4};
    case DType::kF16:
      return PanelLayout{.block_steps = 1, .value_bytes = 2};
    case DType::kBF16:
      return PanelLayout{.block_steps = 2, .value_bytes = 2};
    case DType::kF8E4M3:
    case DType::kF8E4M3_128:
    case DType::kF8E4M3_32:
      return PanelLayout{.block_steps = 1, .value_bytes = 1, .panel_scales = 4};
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return PanelLayout{.block_steps = 32, .heads = 1, .low_bits = 4};
    case DType::kMXFP4:
      return PanelLayout{.block_steps = 32, .small_scales = 1, .low_bits = 4};
    case DType::kQ4_1:
      return PanelLayout{.block_steps = 32, .heads = 2, .low_bits = 4};
    case DType::kQ5_0:
      return PanelLayout{.block_steps = 32, .heads = 1, .low_bits = 4, .high_bits = 1};
    case DType::kQ5_1:
      return PanelLayout{.block_steps = 32, .heads = 2, .low_bits = 4, .high_bits = 1};
    case DType::kQ8_0:
      return PanelLayout{.block_steps = 32, .heads = 1, .low_bits = 8};
    case DType::kQ2_K:
      return PanelLayout{.block_steps = 256, .heads = 2, .small_scales = 2, .low_bits = 2};
    case DType::kQ3_K:
      return PanelLayout{.block_steps = 256, .heads = 1, .small_scales = 2, .low_bits = 2, .high_bits = 1};
    case DType::kQ4_K:
      return PanelLayout{.block_steps = 256, .heads = 2, .small_scales = 2, .low_bits = 4};
    case DType::kQ5_K:
      return PanelLayout{.block_steps = 256, .heads = 2, .small_scales = 2, .low_bits = 4, .high_bits = 1};
    case DType::kQ6_K:
      return PanelLayout{.block_steps = 256, .heads = 1, .small_scales = 2, .low_bits = 4, .high_bits = 2};
    case DType::kIQ4_XS:
    case DType::kIQ2_XXS:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
      return PanelLayout{.block_steps = 256, .heads = 1, .small_scales = 1, .low_bits = 4};
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ1_M:
      return PanelLayout{.block_steps = 256, .heads = 1, .small_scales = 2, .low_bits = 4};
    case DType::kTQ1_0:
    case DType::kTQ2_0:
      return PanelLayout{.block_steps = 256, .heads = 1, .low_bits = 2};
    case DType::kNVFP4:
      return PanelLayout{.block_steps = 64, .small_scales = 2, .low_bits = 4};
    case DType::kQ8_K:
      return PanelLayout{.block_steps = 256, .heads = 1, .head_bytes = 4, .low_bits = 8};
    case DType::kU4_32:
    case DType::kU4_64:
    case DType::kU4_128:
    case DType::kU4_32_F32:
    case DType::kI8_32:
    case DType::kI8_128:
    case DType::kI8_32_Z:
    case DType::kU4_64_HZ:
    case DType::kU4_32_FZ:
    case DType::kI8_64_HZ:
    case DType::kNF4:
    case DType::kFP4:
      return coded_panel_layout(dtype);
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kF8E5M2:
    case DType::kU8:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace quire::ops::cpu
