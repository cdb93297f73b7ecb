#include "nn/bitsandbytes_weights.h"

#include <algorithm>
#include <numeric>

#include "checkpoint/json_file.h"
#include "checkpoint/quantization_config.h"

namespace quire::nn {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using checkpoint::QuantMethod;

bool is_bitsandbytes(const Checkpoint& checkpoint, const WeightSpec& spec) {
  return checkpoint.quantization() != nullptr && checkpoint.quantization()->method == QuantMethod::kBitsandbytes &&
         spec.shape.rank() == 2;
}

// What the JSON beside a weight of 4 bits says.
struct QuantState {
  DType levels = DType::kNF4;
  int64_t block = 0;
  int64_t nested_block = 0;  // 0: scales are no codes
  float nested_offset = 0;
};

template <DType kLevels>
std::string state_of(const std::string& weight) {
  return weight + ".quant_state.bitsandbytes__" + (kLevels == DType::kNF4 ? "nf4" : "fp4");
}

Result<QuantState> read_state(const CheckpointTensor& tensor, DType levels, const Shape& shape) {
  const std::string_view text(static_cast<const char*>(tensor.view.data), static_cast<size_t>(tensor.view.bytes()));
  auto json = checkpoint::parse_json_object(text, {.most_values = 1000, .most_depth = 4});
  if (!json.ok()) return json.status().with_prefix(tensor.name + ": ");
  const auto number = [&](const char* key) {
    const boost::json::value* value = json->if_contains(key);
    return value != nullptr && value->is_number() ? value->to_number<double>() : 0.0;
  };
  const auto size = [&](const char* key) {
    const double found = number(key);
    return found >= 1 && found <= 1 << 20 ? static_cast<int64_t>(found) : int64_t{0};
  };
  QuantState state{.levels = levels, .block = size("blocksize"), .nested_block = size("nested_blocksize")};
  state.nested_offset = static_cast<float>(number("nested_offset"));
  if (state.block == 0) return data_loss("{}: blocksize is missing; expected a number of codes", tensor.name);
  const boost::json::value* said = json->if_contains("shape");
  if (said != nullptr && said->is_array() && said->get_array().size() == 2) {
    const auto& dims = said->get_array();
    if (dims[0].is_int64() && dims[1].is_int64() &&
        (dims[0].get_int64() != shape[0] || dims[1].get_int64() != shape[1])) {
      return data_loss("{}: shape is [{}, {}]; expected {}", tensor.name, dims[0].get_int64(), dims[1].get_int64(),
                       shape.to_string());
    }
  }
  return state;
}

// A table of the file has to be the one that its codes are known by.
Status check_levels(const CheckpointTensor& table, DType levels) {
  const float* known = levels == DType::kNF4 ? kNf4Levels : kFp4Levels;
  for (int i = 0; i < 16; ++i) {
    if (number_at(table.view, i) != known[i])
      return unimplemented("{}: level {} is {}; supported: {} of {}", table.name, i, number_at(table.view, i), known[i],
                           name(levels));
  }
  return {};
}

// Scales that are codes of levels themselves, as numbers.
Status make_scales(const std::string& weight, const QuantState& state, int64_t count, DeclareTensor declare,
                   StoredWeight& out) {
  const int64_t blocks = groups_of(count, state.nested_block);
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* codes,
                         declare_typed(declare, {weight + ".absmax", {count}}, {DType::kU8}));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                         declare_typed(declare, {weight + ".nested_absmax", {blocks}}, {DType::kF32}));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* levels,
                         declare_typed(declare, {weight + ".nested_quant_map", {256}}, {DType::kF32}));
  if (codes == nullptr || scales == nullptr || levels == nullptr) return {};
  auto made = std::make_shared<std::vector<float>>();
  for (int64_t i = 0; i < count; ++i) {
    const float level = number_at(levels->view, static_cast<const uint8_t*>(codes->view.data)[i]);
    const float scaled = level * number_at(scales->view, i / state.nested_block);
    made->push_back(scaled + state.nested_offset);
  }
  out.scales = {made->data(), DType::kF32, {count}};
  out.made_scales = std::move(made);
  return {};
}

}  // namespace

template <DType kLevels>
bool are_levels(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& codes) {
  return is_bitsandbytes(checkpoint, spec) && codes.view.dtype == DType::kU8 &&
         checkpoint.find(state_of<kLevels>(spec.name)) != nullptr;
}
template bool are_levels<DType::kNF4>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);
template bool are_levels<DType::kFP4>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);

template <DType kLevels>
Status resolve_levels(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string& weight = spec.name;
  const int64_t count = spec.shape.num_elements();
  const CheckpointTensor* said = checkpoint.find(state_of<kLevels>(weight));
  declare({.name = said->name, .shape = said->view.shape, .is_codes = true});
  QUIRE_ASSIGN_OR_RETURN(const QuantState state, read_state(*said, kLevels, spec.shape));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* codes,
                         declare_typed(declare, {weight, {(count + 1) / 2, 1}}, {DType::kU8}));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* table,
                         declare_typed(declare, {weight + ".quant_map", {16}}, {DType::kF32}));
  const int64_t blocks = groups_of(count, state.block);
  if (state.nested_block > 0) {
    QUIRE_RETURN_IF_ERROR(make_scales(weight, state, blocks, declare, out));
  } else {
    QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                           declare_typed(declare, {weight + ".absmax", {blocks}}, {DType::kF32}));
    if (scales != nullptr) out.scales = scales->view;
  }
  if (codes == nullptr || table == nullptr || out.scales.data == nullptr) return {};
  QUIRE_RETURN_IF_ERROR(check_levels(*table, kLevels));
  out.codes = codes->view;
  out.scale_rows = state.block;  // of the flat weight: a row's groups are parts of them
  return hold_codes({.rows = spec.shape[0],
                     .columns = spec.shape[1],
                     .group_columns = std::gcd(spec.shape[1], state.block),
                     .levels = kLevels},
                    out);
}
template Status resolve_levels<DType::kNF4>(const Checkpoint&, const WeightSpec&, DeclareTensor, StoredWeight&);
template Status resolve_levels<DType::kFP4>(const Checkpoint&, const WeightSpec&, DeclareTensor, StoredWeight&);

template <DType kLevels>
void unpack_levels(const StoredWeight& weight, int64_t row, CodedRow& out) {
  const int64_t first = row * weight.stored_columns;
  const auto* codes = static_cast<const uint8_t*>(weight.codes.data);
  for (int64_t i = first; i < first + weight.stored_columns; ++i)
    out.codes.push_back(static_cast<int16_t>(i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 0x0f));
  for (int64_t i = first; i < first + weight.stored_columns; i += weight.scale_columns)
    out.scales.push_back(number_at(weight.scales, i / weight.scale_rows));
  out.levels = kLevels == DType::kNF4 ? kNf4Levels : kFp4Levels;
}
template void unpack_levels<DType::kNF4>(const StoredWeight&, int64_t, CodedRow&);
template void unpack_levels<DType::kFP4>(const StoredWeight&, int64_t, CodedRow&);

bool are_llm_int8(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& codes) {
  return is_bitsandbytes(checkpoint, spec) && codes.view.dtype == DType::kI8;
}

Status resolve_llm_int8(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare,
                        StoredWeight& out) {
  const std::string module = module_of(spec.name);
  const CheckpointTensor* codes = declare({.name = spec.name, .shape = spec.shape, .is_codes = true});
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                         declare_typed(declare, {module + ".SCB", {spec.shape[0]}}, {DType::kF32}));
  if (const CheckpointTensor* order = checkpoint.find(spec.name + "_format")) {
    declare({.name = order->name, .shape = order->view.shape, .is_codes = true});
    if (order->view.bytes() != 1 || *static_cast<const uint8_t*>(order->view.data) != 0)
      return unimplemented("{}: codes in the order of a card's tiles; supported: 0, row after row", order->name);
  }
  if (codes == nullptr || scales == nullptr) return {};
  out.codes = codes->view;
  out.scales = scales->view;
  out.input = {.rounding = ops::RowRounding::kInt8Outliers, .threshold = checkpoint.quantization()->outlier_threshold};
  return hold_codes({.rows = spec.shape[0],
                     .columns = spec.shape[1],
                     .bits = 8,
                     .group_columns = spec.shape[1],
                     .zeros_are_0 = true,
                     .scales_as_stored = false},
                    out);
}

void unpack_llm_int8(const StoredWeight& weight, int64_t row, CodedRow& out) {
  const auto* codes = static_cast<const int8_t*>(weight.codes.data) + row * weight.stored_columns;
  out.codes.assign(codes, codes + weight.stored_columns);
  out.zeros = {0};
  out.scales = {number_at(weight.scales, row) * 7.874015718698502e-3f};  // a 127th, as the library has it
}

}  // namespace quire::nn
