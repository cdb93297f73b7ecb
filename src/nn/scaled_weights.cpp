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

// quantization_config.weight_block_size, or block_structure of a group of compressed-tensors.
std::optional<Block> configured_block(const json::object& config) {
  const json::value* value = config.if_contains("quantization_config");
  const json::object* quantization = value == nullptr ? nullptr : value->if_object();
  if (quantization == nullptr) return std::nullopt;
  if (const auto block = block_of(quantization->if_contains("weight_block_size"))) return block;
  const json::value* groups = quantization->if_contains("config_groups");
  if (groups == nullptr || !groups->is_object()) return std::nullopt;
  for (const auto& [name, group] : groups->get_object()) {
    const json::object* object = group.if_object();
    const json::value* weights = object == nullptr ? nullptr : object->if_contains("weights");
    if (weights == nullptr || !weights->is_object()) continue;
    if (const auto block = block_of(weights->get_object().if_contains("block_structure"))) return block;
  }
  return std::nullopt;
}

int64_t blocks(int64_t size, int64_t block) {
  return size / block + (size % block != 0 ? 1 : 0);
}

constexpr bool is_no_number(uint8_t code) {
  return (code & 0x7f) == 0x7f;
}

float number_of(uint8_t code) {
  if (is_no_number(code)) return std::numeric_limits<float>::quiet_NaN();
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

std::array<float, 256> all_numbers() {
  std::array<float, 256> numbers{};
  for (size_t code = 0; code < numbers.size(); ++code) numbers[code] = number_of(static_cast<uint8_t>(code));
  return numbers;
}

}  // namespace

Result<ScaledWeight> ScaledWeight::find(const checkpoint::Checkpoint& checkpoint,
                                        const checkpoint::CheckpointTensor& weight) {
  const Shape& shape = weight.view.shape;
  constexpr std::string_view kSuffix = ".weight";
  if (shape.rank() != 2 || !std::string_view(weight.name).ends_with(kSuffix)) {
    return unimplemented("{} is F8_E4M3 {}; supported: matrices whose names end in .weight", weight.name,
                         shape.to_string());
  }
  const checkpoint::CheckpointTensor* scales = nullptr;
  for (const char* ending : {"_scale_inv", "_scale"}) {
    if (scales == nullptr) scales = checkpoint.find(weight.name + ending);
  }
  if (scales == nullptr) {
    return data_loss("{} is F8_E4M3, but there is neither {}_scale nor {}_scale_inv by which it would be multiplied",
                     weight.name, weight.name, weight.name);
  }
  if (!ops::can_be_quantised(scales->view.dtype)) {
    return unimplemented("{} is {}; supported: F32, F16, BF16", scales->name, name(scales->view.dtype));
  }
  ScaledWeight found(weight.view, *scales);
  const Shape& given = scales->view.shape;
  const int64_t count = given.num_elements();
  if (count == 1) {
    found.rows_of_block_ = shape[0];
    found.columns_of_block_ = shape[1];
    return found;
  }
  if (count == shape[0] && given[0] == shape[0]) {
    found.columns_of_block_ = shape[1];
    return found;
  }
  const auto block = configured_block(checkpoint.config());
  if (!block) {
    return data_loss(
        "{} is {} for a weight {}: expected one number, one a row, or quantization_config with the shape of "
        "its blocks",
        scales->name, given.to_string(), shape.to_string());
  }
  std::tie(found.rows_of_block_, found.columns_of_block_) = *block;
  found.scales_of_row_ = blocks(shape[1], block->second);
  if (given.rank() != 2 || given[0] != blocks(shape[0], block->first) || given[1] != found.scales_of_row_) {
    return data_loss("{} is {} for a weight {}: expected [{}, {}], one for every {} x {}", scales->name,
                     given.to_string(), shape.to_string(), blocks(shape[0], block->first), found.scales_of_row_,
                     block->first, block->second);
  }
  return found;
}

bool ScaledWeight::holds(const TensorView& view) const {
  const auto* begin = static_cast<const uint8_t*>(codes_.data);
  const auto* at = static_cast<const uint8_t*>(view.data);
  return view.dtype == DType::kF8E4M3 && at >= begin && at < begin + codes_.bytes() && view.shape.rank() == 2 &&
         view.shape[1] == codes_.shape[1];
}

float ScaledWeight::scale(int64_t row, int64_t column) const {
  return stored_value(scales_->view.dtype, scales_->view.data,
                      row / rows_of_block_ * scales_of_row_ + column / columns_of_block_);
}

DType ScaledWeight::form() const {
  if (columns_of_block_ >= codes_.shape[1]) return DType::kF8E4M3;
  return columns_of_block_ % ops::kScaleColumns == 0 ? DType::kF8E4M3_128 : DType::kBF16;
}

// Codes that are no numbers would be others to a kernel: they make their float none.
void ScaledWeight::copy_row(DType form, int64_t row, const uint8_t* codes, uint8_t* out) const {
  const int64_t columns = codes_.shape[1];
  const int64_t together = form == DType::kF8E4M3 ? columns : ops::kScaleColumns;
  uint8_t* factors = out + columns;
  std::memcpy(out, codes, static_cast<size_t>(columns));
  for (int64_t begin = 0; begin < columns; begin += together) {
    const int64_t end = std::min(columns, begin + together);
    float factor = scale(row, begin);
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

void ScaledWeight::widen_row(int64_t row, const uint8_t* codes, uint8_t* out) const {
  static const std::array<float, 256> kNumbers = all_numbers();
  const int64_t columns = codes_.shape[1];
  for (int64_t begin = 0; begin < columns; begin += columns_of_block_) {
    const float factor = scale(row, begin);
    for (int64_t i = begin; i < std::min(columns, begin + columns_of_block_); ++i) {
      const uint16_t value = float_to_bfloat16(kNumbers[codes[i]] * factor);
      std::memcpy(out + 2 * i, &value, sizeof(value));
    }
  }
}

std::vector<uint8_t> ScaledWeight::read(const TensorView& view, DType form, ops::Backend& backend) const {
  constexpr int64_t kRowsOfTask = 64;
  const int64_t columns = codes_.shape[1];
  const auto* codes = static_cast<const uint8_t*>(view.data);
  const int64_t first = (codes - static_cast<const uint8_t*>(codes_.data)) / columns;
  const int64_t row_size = ops::quantised_row_bytes(form, columns);
  std::vector<uint8_t> out(static_cast<size_t>(view.shape[0] * row_size));
  backend.host_parallel_for(blocks(view.shape[0], kRowsOfTask), [&](int64_t task, int) {
    const int64_t end = std::min(view.shape[0], (task + 1) * kRowsOfTask);
    for (int64_t row = task * kRowsOfTask; row < end; ++row) {
      const uint8_t* from = codes + row * columns;
      uint8_t* to = out.data() + row * row_size;
      form == DType::kBF16 ? widen_row(first + row, from, to) : copy_row(form, first + row, from, to);
    }
  });
  return out;
}

}  // namespace quire::nn
