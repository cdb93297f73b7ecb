#include "nn/torchao_weights.h"

#include "checkpoint/quantization_config.h"

namespace quire::nn {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

// What is added to a code, and its zero, for it to be held: up to 4 bits are held without a sign.
int shift_of(const StoredWeight& weight) {
  return coded_block(weight.stored).bits == 4 ? 8 : 0;
}

// The scales' shape by which rows are told from groups: one a row may lie in one dimension.
Result<int64_t> columns_of_group(const CheckpointTensor& scales, const Shape& shape) {
  const Shape& given = scales.view.shape;
  const bool is_line = given.rank() == 1 && given[0] == shape[0];
  const int64_t groups = is_line ? 1 : given.rank() == 2 && given[0] == shape[0] ? given[1] : 0;
  if (groups > 0 && shape[1] % groups == 0) return shape[1] / groups;
  return data_loss("{} is {} for a weight {}: expected one number a row, or one for each of equal groups of a row",
                   scales.name, given.to_string(), shape.to_string());
}

}  // namespace

bool are_torchao(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& codes) {
  return checkpoint.quantization() != nullptr &&
         checkpoint.quantization()->method == checkpoint::QuantMethod::kTorchao && spec.shape.rank() == 2 &&
         codes.view.dtype == DType::kI8;
}

Status resolve_torchao(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string stem = module_of(spec.name) + "._weight_";
  const CheckpointTensor* codes = declare({.name = stem + "qdata", .shape = spec.shape, .is_codes = true});
  const CheckpointTensor* stored_scales = checkpoint.find(stem + "scale");
  const Shape scales_shape = stored_scales == nullptr ? Shape{spec.shape[0], 1} : stored_scales->view.shape;
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* scales, declare_typed(declare, {stem + "scale", scales_shape},
                                                                       {DType::kF32, DType::kF16, DType::kBF16}));
  if (codes == nullptr || scales == nullptr) return {};
  QUIRE_ASSIGN_OR_RETURN(const int64_t group_columns, columns_of_group(*scales, spec.shape));
  const bool has_zeros = checkpoint.find(stem + "zero_point") != nullptr;
  if (has_zeros) {
    QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* zeros,
                           declare_typed(declare, {stem + "zero_point", scales_shape}, {DType::kI8}));
    if (zeros == nullptr) return {};
    out.zeros = zeros->view;
  }
  out.codes = codes->view;
  out.scales = scales->view;
  const int bits = checkpoint.quantization()->bits;
  return hold_codes({.rows = spec.shape[0],
                     .columns = spec.shape[1],
                     .bits = bits <= 4 ? 4 : 8,
                     .group_columns = group_columns,
                     .zeros_are_0 = !has_zeros},
                    out);
}

void unpack_torchao(const StoredWeight& weight, int64_t row, CodedRow& out) {
  const auto* codes = static_cast<const int8_t*>(weight.codes.data) + row * weight.stored_columns;
  const int shift = shift_of(weight);
  // What has more bits than were said is cut to them, so that all ways of holding it agree.
  const auto held = [shift](int code) { return static_cast<int16_t>(shift == 0 ? code : (code + shift) & 15); };
  for (int64_t i = 0; i < weight.stored_columns; ++i) out.codes.push_back(held(codes[i]));
  const int64_t groups = groups_of(weight.stored_columns, weight.scale_columns);
  const auto* zeros = static_cast<const int8_t*>(weight.zeros.data);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t at = row * groups + group;
    out.zeros.push_back(held(zeros == nullptr ? 0 : zeros[at]));
    out.scales.push_back(number_at(weight.scales, at));
  }
}

}  // namespace quire::nn
