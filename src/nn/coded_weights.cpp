#include "nn/coded_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "tensor/stored_values.h"

namespace quire::nn {
namespace {

using checkpoint::CheckpointTensor;

bool are_halves(const TensorView& numbers) {
  if (numbers.dtype == DType::kF16) return true;
  for (int64_t i = 0; i < numbers.shape.num_elements(); ++i) {
    const float number = number_at(numbers, i);
    if (half_to_float(float_to_half(number)) != number) return false;
  }
  return true;
}

int64_t group_of(const StoredWeight& weight, int64_t column) {
  if (weight.permutation.data == nullptr) return column / weight.scale_columns;
  return static_cast<const int32_t*>(weight.permutation.data)[column];
}

// What the codes may be held as, the widest blocks first.
DType held_form(const CodedLayout& layout, const StoredWeight& weight) {
  const auto fits = [&](DType form) {
    const int64_t block = info(form).block_values;
    return layout.columns % block == 0 && (layout.group_columns >= layout.columns || layout.group_columns % block == 0);
  };
  const auto first_of = [&](std::initializer_list<DType> forms) {
    for (const DType form : forms) {
      if (fits(form)) return form;
    }
    return DType::kF32;
  };
  if (layout.levels != DType::kU4_32) return first_of({layout.levels});
  const bool halves = layout.scales_as_stored && are_halves(weight.scales);
  if (layout.zeros_are_fractions) {
    const bool all_halves = halves && are_halves(weight.zeros);
    if (layout.bits == 8) return all_halves ? first_of({DType::kI8_64_HZ}) : DType::kF32;
    return all_halves ? first_of({DType::kU4_64_HZ, DType::kU4_32_FZ}) : first_of({DType::kU4_32_FZ});
  }
  if (layout.bits == 8 && layout.zeros_are_0 && halves && fits(DType::kQ8_0)) return DType::kQ8_0;
  if (layout.bits == 8)
    return layout.zeros_are_0 ? first_of({DType::kI8_128, DType::kI8_32}) : first_of({DType::kI8_32_Z});
  if (!halves) return first_of({DType::kU4_32_F32});
  return first_of({DType::kU4_128, DType::kU4_64, DType::kU4_32});
}

// Columns by their groups, those of a group as they come; sets nothing where that is their own order.
Status set_order(const CodedLayout& layout, StoredWeight& out) {
  const auto* groups = static_cast<const int32_t*>(out.permutation.data);
  const int64_t num_groups = groups_of(layout.columns, layout.group_columns);
  std::vector<int64_t> sizes(static_cast<size_t>(num_groups));
  for (int64_t i = 0; i < layout.columns; ++i) {
    if (groups[i] < 0 || groups[i] >= num_groups) {
      return data_loss("{}: column {} is of group {}; expected 0 to {}", out.name, i, groups[i], num_groups - 1);
    }
    ++sizes[static_cast<size_t>(groups[i])];
  }
  auto order = std::make_shared<std::vector<int32_t>>(static_cast<size_t>(layout.columns));
  std::iota(order->begin(), order->end(), 0);
  std::ranges::stable_sort(*order, {}, [&](int32_t column) { return groups[column]; });
  const int64_t last = std::exchange(sizes.back(), layout.group_columns);  // it may be shorter
  const bool as_they_come = std::ranges::is_sorted(*order) &&
                            std::ranges::all_of(sizes, [&](int64_t size) { return size == layout.group_columns; });
  if (as_they_come) {
    out.permutation = {};
    return {};
  }
  // Groups of other sizes than they should have share blocks: such weights are held as numbers.
  const int64_t block = info(out.stored).block_values;
  const bool whole = last % block == 0 && std::ranges::all_of(sizes, [&](int64_t size) { return size % block == 0; });
  if (!whole) out.stored = DType::kF32;
  if (out.stored != DType::kF32) out.input.order = std::move(order);
  return {};
}

// A block's z, as it is held.
void put_zero(const CodedBlock& layout, float zero, uint8_t* out) {
  if (layout.fractions && layout.zero_bytes == 4) {
    std::memcpy(out, &zero, sizeof(zero));
    return;
  }
  const auto bits = layout.fractions ? float_to_half(zero) : static_cast<uint16_t>(static_cast<int16_t>(zero));
  std::memcpy(out, &bits, static_cast<size_t>(layout.zero_bytes));
}

}  // namespace

Status hold_codes(const CodedLayout& layout, StoredWeight& out) {
  out.stored = held_form(layout, out);
  out.scale_columns = std::min(layout.group_columns, layout.columns);
  if (out.permutation.data != nullptr) QUIRE_RETURN_IF_ERROR(set_order(layout, out));
  out.grain = out.input.order != nullptr ? layout.columns : info(out.stored).block_values;
  out.set_layout(out.stored, layout.rows, layout.columns);
  return {};
}

DType common_form(DType first, DType second) {
  const auto are_of = [&](std::initializer_list<DType> forms) {
    return std::ranges::find(forms, first) != forms.end() && std::ranges::find(forms, second) != forms.end();
  };
  if (first == second) return first;
  if (are_of({DType::kU4_128, DType::kU4_64, DType::kU4_32, DType::kU4_32_F32})) return DType::kU4_32_F32;
  if (are_of({DType::kQ8_0, DType::kI8_128, DType::kI8_32})) return DType::kI8_32;
  if (are_of({DType::kQ8_0, DType::kI8_128, DType::kI8_32, DType::kI8_32_Z})) return DType::kI8_32_Z;
  return DType::kF32;
}

void hold_as(DType form, StoredWeight& weight) {
  if (form == weight.form()) return;
  if (form == DType::kF32 || weight.format->form != form_of_codes) {
    weight = weight.scaled();
    return;
  }
  weight.stored = form;
  if (weight.input.order == nullptr) weight.grain = info(form).block_values;
}

DType form_of_codes(const StoredWeight& weight) {
  return weight.stored;
}

void write_coded_row(const StoredWeight& weight, const CodedRow& row, DType form, uint8_t* out) {
  const auto column_at = [&](int64_t i) {
    return weight.input.order == nullptr ? weight.first_column + i
                                         : (*weight.input.order)[static_cast<size_t>(weight.first_column + i)];
  };
  if (form == DType::kF32) {
    for (int64_t i = 0; i < weight.num_columns; ++i, out += sizeof(float)) {
      const auto column = static_cast<size_t>(weight.first_column + i);
      const auto group = static_cast<size_t>(group_of(weight, weight.first_column + i));
      const float number = row.levels != nullptr ? row.levels[row.codes[column]]
                                                 : static_cast<float>(row.codes[column]) - row.zeros[group];
      const float value = number * row.scales[group];
      std::memcpy(out, &value, sizeof(value));
    }
    return;
  }
  const CodedBlock layout = form == DType::kQ8_0 ? CodedBlock{.head_bytes = 2, .zero_bytes = 0, .bits = 8}  // as GGUF's
                                                 : coded_block(form);
  const int64_t block = info(form).block_values;
  for (int64_t begin = 0; begin < weight.num_columns; begin += block) {
    const auto group = static_cast<size_t>(group_of(weight, column_at(begin)));
    const float scale = row.scales[group];
    const uint16_t half = float_to_half(scale);
    std::memcpy(out, layout.head_bytes == 2 ? static_cast<const void*>(&half) : &scale,
                static_cast<size_t>(layout.head_bytes));
    out += layout.head_bytes;
    if (layout.zero_bytes > 0) put_zero(layout, row.zeros[group], out);
    out += layout.zero_bytes;
    // Of codes from 0 to 255 the middle is 0.
    const int above = layout.bits == 8 && layout.fractions ? 128 : 0;
    const auto code = [&](int64_t i) { return row.codes[static_cast<size_t>(column_at(begin + i))] - above; };
    if (layout.bits == 8) {
      for (int64_t i = 0; i < block; ++i) *out++ = static_cast<uint8_t>(code(i));
      continue;
    }
    for (int64_t part = 0; part < block; part += 32) {
      for (int64_t i = part; i < part + 16; ++i) *out++ = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
    }
  }
}

std::string module_of(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight";
  if (weight.ends_with(kWeight)) weight.remove_suffix(kWeight.size());
  return std::string(weight);
}

int64_t groups_of(int64_t columns, int64_t group_columns) {
  return (columns + group_columns - 1) / group_columns;
}

float number_at(const TensorView& numbers, int64_t index) {
  return stored_value(numbers.dtype, numbers.data, index);
}

Status expect_one_scale(const CheckpointTensor& scales) {
  if (scales.view.shape.num_elements() == 1) return {};
  return unimplemented("{} is {} for codes that are stored transposed; supported: one number", scales.name,
                       scales.view.shape.to_string());
}

Result<const CheckpointTensor*> declare_typed(DeclareTensor declare, checkpoint::ParameterSpec tensor,
                                              std::initializer_list<DType> types) {
  tensor.is_codes = true;
  const CheckpointTensor* found = declare(tensor);
  if (found == nullptr || std::ranges::find(types, found->view.dtype) != types.end()) return found;
  std::string expected;
  for (const DType type : types) expected += fmt::format("{}{}", expected.empty() ? "" : ", ", name(type));
  return data_loss("{} is {}; expected {}", tensor.name, name(found->view.dtype), expected);
}

}  // namespace quire::nn
