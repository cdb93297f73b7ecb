#include "nn/quark_weights.h"

#include <algorithm>

#include "checkpoint/quantization_config.h"
#include "nn/gptq_weights.h"

namespace quire::nn {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using checkpoint::ModuleGroup;

template <bool kSigned>
bool are_quark_of(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& codes) {
  const checkpoint::QuantizationConfig* config = checkpoint.quantization();
  if (config == nullptr || config->method != checkpoint::QuantMethod::kQuark || spec.shape.rank() != 2) return false;
  if (codes.view.dtype != DType::kI32) return false;
  const auto group = config->group_of(module_of(spec.name));
  return !group.ok() || ((*group)->format == "int4") == kSigned;  // what is wrong is told when it is resolved
}
template bool are_quark_of<false>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);
template bool are_quark_of<true>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);

Status resolve_quark(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string module = module_of(spec.name);
  QUIRE_ASSIGN_OR_RETURN(const ModuleGroup* group, checkpoint.quantization()->group_of(module));
  if (group->format != "int4" && group->format != "uint4")
    return data_loss("{} is I32; expected what quantization_config says, {}", spec.name, group->format);
  constexpr int64_t kCodes = 8;  // of a word
  const int64_t rows = spec.shape[0];
  const int64_t columns = spec.shape[1];
  const int64_t group_columns = std::min(group->weights.group_size, columns);
  if (rows % kCodes != 0 || columns % group_columns != 0) {
    return unimplemented("{}: {} x {} codes in groups of {}; supported: outputs in whole times {}, whole groups",
                         spec.name, rows, columns, group_columns, kCodes);
  }
  const int64_t groups = columns / group_columns;
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* codes,
                         declare_typed(declare, {spec.name, {columns, rows / kCodes}}, {DType::kI32}));
  QUIRE_ASSIGN_OR_RETURN(
      const CheckpointTensor* scales,
      declare_typed(declare, {module + ".weight_scale", {groups, rows}}, {DType::kF32, DType::kF16, DType::kBF16}));
  QUIRE_ASSIGN_OR_RETURN(
      const CheckpointTensor* zeros,
      declare_typed(declare, {module + ".weight_zero_point", {groups, rows / kCodes}}, {DType::kI32}));
  if (codes == nullptr || scales == nullptr || zeros == nullptr) return {};
  out.codes = codes->view;
  out.scales = scales->view;
  out.zeros = zeros->view;
  return hold_codes({.rows = rows, .columns = columns, .group_columns = group_columns}, out);
}

template <bool kSigned>
void unpack_quark(const StoredWeight& weight, int64_t row, CodedRow& out) {
  constexpr int kSign = kSigned ? 8 : 0;  // both are counted from the least number on
  for (int64_t i = 0; i < weight.stored_columns; ++i)
    out.codes.push_back(static_cast<int16_t>(awq_code(weight.codes, i, row) ^ kSign));
  for (int64_t group = 0; group < groups_of(weight.stored_columns, weight.scale_columns); ++group) {
    out.zeros.push_back(static_cast<int16_t>(awq_code(weight.zeros, group, row) ^ kSign));
    out.scales.push_back(number_at(weight.scales, group * weight.scales.shape[1] + row));
  }
}
template void unpack_quark<false>(const StoredWeight&, int64_t, CodedRow&);
template void unpack_quark<true>(const StoredWeight&, int64_t, CodedRow&);

}  // namespace quire::nn
