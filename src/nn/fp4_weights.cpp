#include "nn/fp4_weights.h"

#include <cstring>

#include "checkpoint/quantization_config.h"
#include "nn/coded_weights.h"
#include "nn/compressed_weights.h"
#include "tensor/stored_values.h"

namespace quire::nn {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using checkpoint::ModuleGroup;
using checkpoint::QuantMethod;

constexpr int64_t kNvGroup = 16;

bool is_by(const Checkpoint& checkpoint, QuantMethod method, const WeightSpec& spec) {
  return checkpoint.quantization() != nullptr && checkpoint.quantization()->method == method && spec.shape.rank() == 2;
}

bool has_scales(const Checkpoint& checkpoint, const WeightSpec& spec, DType dtype) {
  const CheckpointTensor* scales = checkpoint.find(module_of(spec.name) + ".weight_scale");
  return scales != nullptr && scales->view.dtype == dtype;
}

// Declares codes and scales. False: one of them is missing.
Result<bool> declare_codes_and_scales(const WeightSpec& spec, const std::string& codes_name, int64_t group,
                                      DType scales, DeclareTensor declare, StoredWeight& out) {
  const int64_t rows = spec.shape[0];
  const int64_t columns = spec.shape[1];
  if (columns % group != 0)
    return unimplemented("{}: rows of {} codes; supported: whole times {}", codes_name, columns, group);
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* codes,
                         declare_typed(declare, {codes_name, {rows, columns / 2}}, {DType::kU8}));
  QUIRE_ASSIGN_OR_RETURN(
      const CheckpointTensor* found,
      declare_typed(declare, {module_of(spec.name) + ".weight_scale", {rows, columns / group}}, {scales}));
  if (codes == nullptr || found == nullptr) return false;
  out.codes = codes->view;
  out.scales = found->view;
  out.scale_columns = group;
  return true;
}

// One number that must be there and above 0.
Result<float> declare_number(const Checkpoint& checkpoint, const std::string& name, DeclareTensor declare) {
  const CheckpointTensor* found = checkpoint.find(name);
  if (found == nullptr || found->view.shape.num_elements() != 1 || !ops::can_be_quantised(found->view.dtype)) {
    return data_loss("{} is {}; expected one number", name,
                     found == nullptr ? "missing" : found->view.shape.to_string());
  }
  declare({.name = name, .shape = found->view.shape});
  const float number = number_at(found->view, 0);
  if (!(number > 0)) return data_loss("{} is {}; expected a number above 0", name, number);
  return number;
}

int code_at(const StoredWeight& weight, int64_t row, int64_t column) {
  const uint8_t byte = static_cast<const uint8_t*>(weight.codes.data)[row * weight.codes.shape[1] + column / 2];
  return column % 2 == 0 ? byte & 0x0f : byte >> 4;
}

uint8_t scale_code(const StoredWeight& weight, int64_t row, int64_t column) {
  return static_cast<const uint8_t*>(weight.scales.data)[row * weight.scales.shape[1] + column / weight.scale_columns];
}

// Groups of `size` values, the first half in the lower halves of bytes.
uint8_t* put_group(const StoredWeight& weight, int64_t row, int64_t first, int64_t size, uint8_t* out) {
  for (int64_t i = first; i < first + size / 2; ++i)
    *out++ = static_cast<uint8_t>(code_at(weight, row, i) | code_at(weight, row, i + size / 2) << 4);
  return out;
}

// A block of one group as DType::kNVFP4 or kMXFP4 has it, for its numbers.
float number_of(const StoredWeight& weight, int64_t row, int64_t column) {
  const bool is_nv = weight.scale_columns == kNvGroup;
  uint8_t block[36] = {};
  block[0] = scale_code(weight, row, column);
  block[is_nv ? 4 : 1] = static_cast<uint8_t>(code_at(weight, row, column));
  const float number = stored_value(is_nv ? DType::kNVFP4 : DType::kMXFP4, block, 0);
  return weight.made_scales == nullptr ? number : number * weight.made_scales->front();
}

void read_as_numbers(const StoredWeight& weight, int64_t row, uint8_t* out) {
  for (int64_t i = weight.first_column; i < weight.first_column + weight.num_columns; ++i, out += sizeof(float)) {
    const float number = number_of(weight, row, i);
    std::memcpy(out, &number, sizeof(number));
  }
}

}  // namespace

bool are_nvfp4(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& codes) {
  const bool is_of_either =
      is_by(checkpoint, QuantMethod::kCompressedTensors, spec) || is_by(checkpoint, QuantMethod::kModelopt, spec);
  return is_of_either && codes.view.dtype == DType::kU8 && has_scales(checkpoint, spec, DType::kF8E4M3);
}

Status resolve_nvfp4(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string module = module_of(spec.name);
  const bool is_modelopt = checkpoint.quantization()->method == QuantMethod::kModelopt;
  QUIRE_ASSIGN_OR_RETURN(const bool found,
                         declare_codes_and_scales(spec, is_modelopt ? spec.name : module + ".weight_packed", kNvGroup,
                                                  DType::kF8E4M3, declare, out));
  QUIRE_ASSIGN_OR_RETURN(
      const float shared,
      declare_number(checkpoint, module + (is_modelopt ? ".weight_scale_2" : ".weight_global_scale"), declare));
  out.input.factor = is_modelopt ? shared : 1 / shared;
  out.made_scales = std::make_shared<const std::vector<float>>(1, out.input.factor);
  const std::string of_inputs = module + (is_modelopt ? ".input_scale" : ".input_global_scale");
  bool rounds = is_modelopt && checkpoint.find(of_inputs) != nullptr;
  if (!is_modelopt) {
    QUIRE_ASSIGN_OR_RETURN(const ModuleGroup* group, checkpoint.quantization()->group_of(module));
    rounds = group->inputs.has_value();
  }
  if (rounds) {
    QUIRE_ASSIGN_OR_RETURN(const float scale, declare_number(checkpoint, of_inputs, declare));
    out.input.rounding = ops::RowRounding::kFloat4;
    out.input.group = kNvGroup;
    out.input.scale = is_modelopt ? 1 / scale : scale;
  }
  if (!found) return {};
  const DType stored = spec.shape[1] % info(DType::kNVFP4).block_values == 0 ? DType::kNVFP4 : DType::kF32;
  if (stored == DType::kF32) out.input.factor = 1;  // it is in the numbers
  out.grain = info(stored).block_values;
  out.set_layout(stored, spec.shape[0], spec.shape[1]);
  return {};
}

void read_nvfp4(const StoredWeight& weight, int64_t row, DType form, uint8_t* out) {
  if (form == DType::kF32) return read_as_numbers(weight, row, out);
  constexpr int64_t kBlock = 64;
  for (int64_t first = weight.first_column; first < weight.first_column + weight.num_columns; first += kBlock) {
    for (int64_t i = first; i < first + kBlock; i += kNvGroup) *out++ = scale_code(weight, row, i);
    for (int64_t i = first; i < first + kBlock; i += kNvGroup) out = put_group(weight, row, i, kNvGroup, out);
  }
}

bool are_mxfp4(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& codes) {
  const bool is_of_either =
      is_by(checkpoint, QuantMethod::kCompressedTensors, spec) || is_by(checkpoint, QuantMethod::kQuark, spec);
  return is_of_either && codes.view.dtype == DType::kU8 && has_scales(checkpoint, spec, DType::kU8);
}

Status resolve_mxfp4(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  constexpr int64_t kGroup = 32;
  const std::string module = module_of(spec.name);
  const bool is_quark = checkpoint.quantization()->method == QuantMethod::kQuark;
  const std::string codes = is_quark ? spec.name : module + ".weight_packed";
  QUIRE_ASSIGN_OR_RETURN(const ModuleGroup* group, checkpoint.quantization()->group_of(module));
  if (group->format != "mxfp4-pack-quantized")
    return data_loss("{} is U8 with scales of U8; expected what its group's format {} stores", codes, group->format);
  if (group->inputs && !is_quark)
    return unimplemented("{}: inputs of MXFP4 that are rounded; supported: weights alone", codes);
  QUIRE_ASSIGN_OR_RETURN(const bool found, declare_codes_and_scales(spec, codes, kGroup, DType::kU8, declare, out));
  QUIRE_RETURN_IF_ERROR(resolve_inputs(checkpoint, module, declare, out));
  if (!found) return {};
  out.grain = kGroup;
  out.set_layout(DType::kMXFP4, spec.shape[0], spec.shape[1]);
  return {};
}

void read_mxfp4(const StoredWeight& weight, int64_t row, DType form, uint8_t* out) {
  if (form == DType::kF32) return read_as_numbers(weight, row, out);
  for (int64_t i = weight.first_column; i < weight.first_column + weight.num_columns; i += 32) {
    *out++ = scale_code(weight, row, i);
    out = put_group(weight, row, i, 32, out);
  }
}

}  // namespace quire::nn
