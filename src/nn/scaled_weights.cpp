#include "nn/scaled_weights.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "checkpoint/quantization_config.h"
#include "nn/coded_weights.h"
#include "nn/compressed_weights.h"
#include "ops/quantise.h"
#include "tensor/stored_values.h"

namespace quire::nn {
namespace {

namespace json = boost::json;

using Block = std::pair<int64_t, int64_t>;  // rows and columns

// A list of two whole numbers above 0.
std::optional<Block> block_of(const json::value* value) {
  const json::array* list = value == nullptr ? nullptr : value->if_array();
  if (list == nullptr || list->size() != 2) return std::nullopt;
  const int64_t* rows = (*list)[0].if_int64();
  const int64_t* columns = (*list)[1].if_int64();
  if (rows == nullptr || columns == nullptr || *rows <= 0 || *columns <= 0) return std::nullopt;
  return Block{*rows, *columns};
}

// quantization_config.weight_block_size, or block_structure of the module's group of compressed-tensors.
std::optional<Block> configured_block(const checkpoint::Checkpoint& checkpoint, std::string_view module) {
  const checkpoint::QuantizationConfig* typed = checkpoint.quantization();
  if (typed != nullptr && typed->method == checkpoint::QuantMethod::kCompressedTensors) {
    const auto group = typed->group_of(module);
    return group.ok() ? (*group)->weights.block : std::nullopt;
  }
  const json::value* value = checkpoint.config().if_contains("quantization_config");
  const json::value* text = checkpoint.config().if_contains("text_config");
  if (value == nullptr && text != nullptr && text->is_object()) {
    value = text->get_object().if_contains("quantization_config");
  }
  const json::object* quantization = value == nullptr ? nullptr : value->if_object();
  return quantization == nullptr ? std::nullopt : block_of(quantization->if_contains("weight_block_size"));
}

int64_t blocks(int64_t size, int64_t block) {
  return size / block + (size % block != 0 ? 1 : 0);
}

constexpr bool is_no_number(uint8_t code) {
  return (code & 0x7f) == 0x7f;
}

// F8_E5M2 is the upper half of an F16.
float number_of_e5m2(uint8_t code) {
  return half_to_float(static_cast<uint16_t>(code << 8));
}

float number_of(uint8_t code) {
  if (is_no_number(code)) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

std::array<float, 256> all_numbers(float (*number)(uint8_t code)) {
  std::array<float, 256> numbers{};
  for (size_t code = 0; code < numbers.size(); ++code) numbers[code] = number(static_cast<uint8_t>(code));
  return numbers;
}

// OCP's MX: a power of two, of which there are 255.
float number_of_exponent(uint8_t code) {
  return code == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
}

float scale_at(const StoredWeight& weight, int64_t row, int64_t column) {
  if (weight.scales.data == nullptr) return 1;  // E5M2's range needs none
  const int64_t scales_of_row = blocks(weight.stored_columns, weight.scale_columns);
  const int64_t at = row / weight.scale_rows * scales_of_row + column / weight.scale_columns;
  if (weight.scales.dtype == DType::kU8) return number_of_exponent(static_cast<const uint8_t*>(weight.scales.data)[at]);
  return stored_value(weight.scales.dtype, weight.scales.data, at);
}

// Codes of NaN would be others to a kernel: they make their float NaN.
void copy_row(const StoredWeight& weight, DType form, int64_t row, const uint8_t* codes, uint8_t* out) {
  const int64_t columns = weight.num_columns;
  const int64_t together = form == DType::kF8E4M3 ? columns : ops::columns_of_scale(form);
  uint8_t* factors = out + columns;
  std::memcpy(out, codes, static_cast<size_t>(columns));
  for (int64_t begin = 0; begin < columns; begin += together) {
    const int64_t end = std::min(columns, begin + together);
    float factor = scale_at(weight, row, weight.first_column + begin);
    bool all_numbers = true;
    for (int64_t i = begin; i < end; ++i) all_numbers &= !is_no_number(codes[i]);
    if (!all_numbers) {
      factor = std::numeric_limits<float>::quiet_NaN();
      std::replace_if(out + begin, out + end, is_no_number, uint8_t{0});
    }
    std::memcpy(factors, &factor, sizeof(factor));
    factors += sizeof(factor);
  }
}

void widen_row(const StoredWeight& weight, int64_t row, const uint8_t* codes, uint8_t* out) {
  static const std::array<float, 256> kE4M3 = all_numbers(number_of);
  static const std::array<float, 256> kE5M2 = all_numbers(number_of_e5m2);
  const std::array<float, 256>& numbers = weight.stored == DType::kF8E5M2 ? kE5M2 : kE4M3;
  // A cut may begin within what shares a scale only where that is the whole row.
  for (int64_t begin = 0; begin < weight.num_columns; begin += weight.scale_columns) {
    const float factor = scale_at(weight, row, weight.first_column + begin);
    for (int64_t i = begin; i < std::min(weight.num_columns, begin + weight.scale_columns); ++i) {
      const uint16_t value = float_to_bfloat16(numbers[codes[i]] * factor);
      std::memcpy(out + 2 * i, &value, sizeof(value));
    }
  }
}

// The scales of a matrix, or of a stack of `count` such: of each one number, one a row, or one a block.
struct MatrixOfStack {
  int64_t count;
  int64_t rows;
  int64_t columns;
};

// Blocks of MXFP8, of which no configuration speaks: 32 columns of a row.
Result<Block> block_of_exponents(const checkpoint::CheckpointTensor& scales, const MatrixOfStack& matrix,
                                 const Shape& shape) {
  Shape expected = {matrix.rows, blocks(matrix.columns, ops::kMxScaleColumns)};
  if (shape.rank() == 3) expected = {matrix.count, expected[0], expected[1]};
  if (scales.view.shape == expected) return Block{1, ops::kMxScaleColumns};
  return data_loss("{} is U8 {} for a weight {}: expected {}, an exponent for every {} columns (MXFP8)", scales.name,
                   scales.view.shape.to_string(), shape.to_string(), expected.to_string(), ops::kMxScaleColumns);
}

// Which rows and columns share one of the scales. Blocks of a stack lie in one matrix each, so that rows can be counted
// through all of it.
Result<Block> block_of_scales(const checkpoint::Checkpoint& checkpoint, const checkpoint::CheckpointTensor& scales,
                              const MatrixOfStack& matrix, const Shape& shape, std::string_view module) {
  const auto [stack, rows, columns] = matrix;
  const Shape& given = scales.view.shape;
  const int64_t count = given.num_elements();
  if (count == 1) return Block{stack * rows, columns};
  if (stack > 1 && count == stack && given[0] == stack) return Block{rows, columns};
  if (count == stack * rows && given[0] == (stack > 1 ? stack : rows)) return Block{1, columns};
  const auto block = configured_block(checkpoint, module);
  if (!block) {
    return data_loss(
        "{} is {} for a weight {}: expected one number, one a {}row, or quantization_config with the shape of "
        "its blocks",
        scales.name, given.to_string(), shape.to_string(), stack > 1 ? "matrix or " : "");
  }
  Shape expected = {blocks(rows, block->first), blocks(columns, block->second)};
  if (stack > 1) expected = {stack, expected[0], expected[1]};
  if (given != expected) {
    return data_loss("{} is {} for a weight {}: expected {}, one for every {} x {}", scales.name, given.to_string(),
                     shape.to_string(), expected.to_string(), block->first, block->second);
  }
  if (stack == 1 || rows % block->first == 0) return *block;
  return unimplemented("{}: a stack of matrices of {} rows in blocks of {}; supported: whole blocks", scales.name, rows,
                       block->first);
}

}  // namespace

bool are_float8(const checkpoint::Checkpoint& /*checkpoint*/, const WeightSpec& /*spec*/,
                const checkpoint::CheckpointTensor& codes) {
  return codes.view.dtype == DType::kF8E4M3 || codes.view.dtype == DType::kF8E5M2;
}

Status resolve_float8(const checkpoint::Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                      StoredWeight& out) {
  const checkpoint::CheckpointTensor* codes = declare_codes(checkpoint, spec, declare);
  if (codes == nullptr) return {};
  const Shape& shape = codes->view.shape;
  const DType stored = codes->view.dtype;
  const bool is_stack = shape.rank() == 3;
  if (!is_stack && (shape.rank() != 2 || !std::string_view(spec.name).ends_with(".weight"))) {
    return unimplemented("{} is {} {}; supported: matrices whose names end in .weight, and stacks of experts",
                         spec.name, name(stored), shape.to_string());
  }
  if (is_stack) QUIRE_RETURN_IF_ERROR(refuse_transposed(spec, stored));
  out.by_columns = spec.transposed;
  const MatrixOfStack matrix{is_stack ? shape[0] : 1, spec.shape[shape.rank() - 2], spec.shape[shape.rank() - 1]};
  const checkpoint::CheckpointTensor* scales = nullptr;
  for (const char* ending : {"_scale_inv", "_scale"}) {
    if (scales == nullptr) scales = checkpoint.find(spec.name + ending);
  }
  out.codes = codes->view;
  out.scale_rows = matrix.count * matrix.rows;
  out.scale_columns = matrix.columns;
  out.set_layout(stored, matrix.count * matrix.rows, matrix.columns);
  if (scales == nullptr && stored == DType::kF8E5M2) return {};
  if (scales == nullptr) {
    return data_loss("{} is F8_E4M3, but there is neither {}_scale nor {}_scale_inv by which it would be multiplied",
                     spec.name, spec.name, spec.name);
  }
  declare({scales->name, scales->view.shape});
  const bool are_exponents = scales->view.dtype == DType::kU8;
  if (!are_exponents && !ops::can_be_quantised(scales->view.dtype)) {
    return unimplemented("{} is {}; supported: F32, F16, BF16, and U8 of MXFP8", scales->name,
                         name(scales->view.dtype));
  }
  out.scales = scales->view;
  if (out.by_columns) QUIRE_RETURN_IF_ERROR(expect_one_scale(*scales));
  QUIRE_ASSIGN_OR_RETURN(std::tie(out.scale_rows, out.scale_columns),
                         are_exponents ? block_of_exponents(*scales, matrix, shape)
                                       : block_of_scales(checkpoint, *scales, matrix, shape, module_of(spec.name)));
  if (out.scale_columns < matrix.columns) out.grain = out.scale_columns;
  if (is_stack) return {};
  return resolve_inputs(checkpoint, module_of(spec.name), declare, out);
}

DType form_of_float8(const StoredWeight& weight) {
  if (weight.stored == DType::kF8E5M2) return DType::kBF16;
  if (weight.scale_columns >= weight.stored_columns) return DType::kF8E4M3;
  if (weight.scale_columns % ops::kScaleColumns == 0) return DType::kF8E4M3_128;
  return weight.scales.dtype == DType::kU8 ? DType::kF8E4M3_32 : DType::kBF16;
}

void read_float8(const StoredWeight& weight, int64_t row, DType form, uint8_t* out) {
  if (weight.by_columns) {
    const std::vector<uint8_t> codes = column_of<uint8_t>(weight.codes, row, weight.first_column, weight.num_columns);
    form == DType::kBF16 ? widen_row(weight, row, codes.data(), out) : copy_row(weight, form, row, codes.data(), out);
    return;
  }
  const auto* codes =
      static_cast<const uint8_t*>(weight.codes.data) + row * weight.stored_columns + weight.first_column;
  form == DType::kBF16 ? widen_row(weight, row, codes, out) : copy_row(weight, form, row, codes, out);
}

}  // namespace quire::nn
