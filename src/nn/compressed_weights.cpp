#include "nn/compressed_weights.h"

#include <algorithm>

#include "checkpoint/quantization_config.h"

namespace quire::nn {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;
using checkpoint::ModuleGroup;
using checkpoint::QuantMethod;
using checkpoint::RoundingScheme;
using Per = RoundingScheme::Per;

bool is_of_groups(const Checkpoint& checkpoint) {
  const checkpoint::QuantizationConfig* config = checkpoint.quantization();
  return config != nullptr &&
         (config->method == QuantMethod::kCompressedTensors || config->method == QuantMethod::kQuark);
}

// Declares the scales, and says how many columns share one. is_one: all do, whatever the scheme says. nullptr: they
// are missing.
Result<const CheckpointTensor*> declare_scales(const Checkpoint& checkpoint, const std::string& module,
                                               const RoundingScheme& scheme, CodedLayout& layout, DeclareTensor declare,
                                               bool is_one = false) {
  is_one = is_one || scheme.per == Per::kTensor;
  layout.group_columns =
      scheme.per == Per::kGroup && !is_one ? std::min(scheme.group_size, layout.columns) : layout.columns;
  const std::string name = module + ".weight_scale";
  Shape shape = {layout.rows, groups_of(layout.columns, layout.group_columns)};
  const CheckpointTensor* stored = checkpoint.find(name);
  if (stored != nullptr && stored->view.shape == Shape{layout.rows} && scheme.per == Per::kChannel)
    shape = {layout.rows};  // as Quark has them
  if (is_one) {
    shape = stored != nullptr && stored->view.shape.num_elements() == 1 ? stored->view.shape : Shape{1};
  }
  if (scheme.per == Per::kBlock || scheme.per == Per::kToken)
    return unimplemented("{}.weight: whole numbers with scales of blocks; supported: of rows and groups", module);
  return declare_typed(declare, {name, shape}, {DType::kF32, DType::kF16, DType::kBF16});
}

float scale_of(const StoredWeight& weight, int64_t row, int64_t group) {
  const Shape& shape = weight.scales.shape;
  if (shape.rank() == 1) return number_at(weight.scales, shape[0] == 1 ? 0 : row);
  return number_at(weight.scales, shape.num_elements() == 1 ? 0 : row * shape[1] + group);
}

// "X.weight_shape" is the weight's.
Status check_shape(const Checkpoint& checkpoint, const std::string& module, const Shape& expected,
                   DeclareTensor declare) {
  const CheckpointTensor* shape = checkpoint.find(module + ".weight_shape");
  if (shape == nullptr) return {};
  declare({.name = shape->name, .shape = {2}, .is_codes = true});
  const TensorView& view = shape->view;
  if (view.shape != Shape{2} || (view.dtype != DType::kI64 && view.dtype != DType::kI32) || view.data == nullptr)
    return data_loss("{} is {} {}; expected two whole numbers", shape->name, name(view.dtype), view.shape.to_string());
  const auto at = [&](int i) {
    return view.dtype == DType::kI64 ? static_cast<const int64_t*>(view.data)[i]
                                     : int64_t{static_cast<const int32_t*>(view.data)[i]};
  };
  if (at(0) == expected[0] && at(1) == expected[1]) return {};
  return data_loss("{} says [{}, {}]; expected {}", shape->name, at(0), at(1), expected.to_string());
}

// An order that was never set is -1 all over: columns are as they come.
bool names_groups(const TensorView& index) {
  const auto* groups = static_cast<const int32_t*>(index.data);
  return std::find(groups, groups + index.shape[0], -1) == groups + index.shape[0];
}

}  // namespace

Status resolve_inputs(const Checkpoint& checkpoint, const std::string& module, DeclareTensor declare,
                      StoredWeight& out) {
  if (!is_of_groups(checkpoint)) return {};
  QUIRE_ASSIGN_OR_RETURN(const ModuleGroup* group, checkpoint.quantization()->group_of(module));
  if (checkpoint.find(module + ".input_rotation") != nullptr)
    return unimplemented("{}.input_rotation: inputs that are rotated; supported: as they are", module);
  if (!group->inputs) return {};
  const RoundingScheme& inputs = *group->inputs;
  ops::InputForm& form = out.input;
  if (inputs.is_float && inputs.bits == 4) {
    form.rounding = ops::RowRounding::kMxFloat4;
    form.group = inputs.group_size;
    return {};
  }
  form.rounding = inputs.is_float ? ops::RowRounding::kFloat8 : ops::RowRounding::kInt8;
  if (inputs.has_exponents && inputs.is_float && inputs.dynamic) form.rounding = ops::RowRounding::kMxFloat8;
  if (inputs.dynamic) {
    if (!inputs.symmetric) form.rounding = ops::RowRounding::kInt8Range;
    form.group = inputs.per == Per::kGroup ? inputs.group_size : 0;
    return {};
  }
  const CheckpointTensor* scale = checkpoint.find(module + ".input_scale");
  if (scale == nullptr || scale->view.shape.num_elements() != 1 || !ops::can_be_quantised(scale->view.dtype)) {
    return data_loss("{}.input_scale is {}; expected one number, since quantization_config says that it is stored",
                     module, scale == nullptr ? "missing" : scale->view.shape.to_string());
  }
  declare({.name = scale->name, .shape = scale->view.shape});
  form.scale = number_at(scale->view, 0);
  if (!(form.scale > 0)) return data_loss("{} is {}; expected a number above 0", scale->name, form.scale);
  const CheckpointTensor* zero = checkpoint.find(module + ".input_zero_point");
  if (zero == nullptr) return {};
  declare({.name = zero->name, .shape = zero->view.shape, .is_codes = true});
  if (inputs.is_float) return {};
  if (zero->view.dtype != DType::kI8 || zero->view.shape.num_elements() != 1)
    return data_loss("{} is {} {}; expected one I8", zero->name, name(zero->view.dtype), zero->view.shape.to_string());
  form.zero = *static_cast<const int8_t*>(zero->view.data);
  return {};
}

bool are_packed(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& codes) {
  return is_of_groups(checkpoint) && spec.shape.rank() == 2 && codes.view.dtype == DType::kI32;
}

Status resolve_packed(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string module = module_of(spec.name);
  QUIRE_ASSIGN_OR_RETURN(const ModuleGroup* group, checkpoint.quantization()->group_of(module));
  const RoundingScheme& scheme = group->weights;
  if (group->format != "pack-quantized")
    return data_loss("{}.weight_packed: its group's format is {}; expected pack-quantized", module, group->format);
  CodedLayout layout{.rows = spec.shape[0], .columns = spec.shape[1], .bits = scheme.bits};
  layout.zeros_are_0 = scheme.symmetric;
  const int64_t words = groups_of(layout.columns * scheme.bits, kWordBits);
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* codes,
                         declare_typed(declare, {module + ".weight_packed", {layout.rows, words}}, {DType::kI32}));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* scales, declare_scales(checkpoint, module, scheme, layout, declare));
  const int64_t groups = groups_of(layout.columns, layout.group_columns);
  QUIRE_RETURN_IF_ERROR(check_shape(checkpoint, module, spec.shape, declare));
  QUIRE_ASSIGN_OR_RETURN(
      const CheckpointTensor* group_index,
      declare_typed(declare, {module + ".weight_g_idx", {layout.columns}, /*optional=*/true}, {DType::kI32}));
  if (codes == nullptr || scales == nullptr) return {};
  if (!scheme.symmetric) {
    QUIRE_ASSIGN_OR_RETURN(
        const CheckpointTensor* zeros,
        declare_typed(declare,
                      {module + ".weight_zero_point", {groups_of(layout.rows * scheme.bits, kWordBits), groups}},
                      {DType::kI32}));
    if (zeros == nullptr) return {};
    out.zeros = zeros->view;
  }
  out.codes = codes->view;
  out.scales = scales->view;
  if (group_index != nullptr && scheme.per == Per::kGroup && names_groups(group_index->view))
    out.permutation = group_index->view;
  QUIRE_RETURN_IF_ERROR(resolve_inputs(checkpoint, module, declare, out));
  return hold_codes(layout, out);
}

void unpack_packed(const StoredWeight& weight, int64_t row, CodedRow& out) {
  const int64_t words = weight.codes.shape[1];
  const int bits = words * kWordBits >= weight.stored_columns * 8 ? 8 : 4;
  const int below = bits == 8 ? 128 : 0;  // codes of 8 bits have a sign
  for (int64_t i = 0; i < weight.stored_columns; ++i)
    out.codes.push_back(static_cast<int16_t>(packed_bits(weight.codes, 1, row * words, i * bits, bits) - below));
  const int64_t groups = groups_of(weight.stored_columns, weight.scale_columns);
  for (int64_t group = 0; group < groups; ++group) {
    const int zero =
        weight.zeros.data == nullptr ? 1 << (bits - 1) : packed_bits(weight.zeros, groups, group, row * bits, bits);
    out.zeros.push_back(static_cast<int16_t>(zero - below));
    out.scales.push_back(scale_of(weight, row, group));
  }
}

bool are_bytes(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& codes) {
  return is_of_groups(checkpoint) && spec.shape.rank() == 2 && codes.view.dtype == DType::kI8;
}

Status resolve_bytes(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string module = module_of(spec.name);
  QUIRE_ASSIGN_OR_RETURN(const ModuleGroup* group, checkpoint.quantization()->group_of(module));
  const RoundingScheme& scheme = group->weights;
  if (scheme.is_float || scheme.bits > 8)
    return data_loss("{} is I8; expected what its group's format {} stores", spec.name, group->format);
  CodedLayout layout{.rows = spec.shape[0], .columns = spec.shape[1], .bits = 8};
  layout.zeros_are_0 = scheme.symmetric;
  // Where the family keeps matrices transposed its codes are, too, and older versions of the library give them one
  // scale, whatever strategy is named; newer ones leave such modules as they are.
  out.by_columns = spec.transposed;
  Shape stored = spec.shape;
  if (out.by_columns) {
    stored = {spec.shape[1], spec.shape[0]};
    if (const CheckpointTensor* given = checkpoint.find(module + ".weight_scale"))
      QUIRE_RETURN_IF_ERROR(expect_one_scale(*given));
  }
  const CheckpointTensor* codes = declare({.name = spec.name, .shape = stored, .is_codes = true});
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                         declare_scales(checkpoint, module, scheme, layout, declare, out.by_columns));
  if (codes == nullptr || scales == nullptr) return {};
  const CheckpointTensor* zeros = checkpoint.find(module + ".weight_zero_point");
  if (zeros != nullptr || !scheme.symmetric) {
    QUIRE_ASSIGN_OR_RETURN(zeros,
                           declare_typed(declare, {module + ".weight_zero_point", scales->view.shape}, {DType::kI8}));
    if (zeros == nullptr) return {};
    if (!scheme.symmetric) out.zeros = zeros->view;
  }
  out.codes = codes->view;
  out.scales = scales->view;
  QUIRE_RETURN_IF_ERROR(resolve_inputs(checkpoint, module, declare, out));
  return hold_codes(layout, out);
}

void unpack_bytes(const StoredWeight& weight, int64_t row, CodedRow& out) {
  const auto* codes = static_cast<const int8_t*>(weight.codes.data) + row * weight.stored_columns;
  if (weight.by_columns) {
    const std::vector<int8_t> column = column_of<int8_t>(weight.codes, row, 0, weight.stored_columns);
    out.codes.assign(column.begin(), column.end());
  } else {
    out.codes.assign(codes, codes + weight.stored_columns);
  }
  const int64_t groups = groups_of(weight.stored_columns, weight.scale_columns);
  for (int64_t group = 0; group < groups; ++group) {
    const auto* zeros = static_cast<const int8_t*>(weight.zeros.data);
    const int64_t at = weight.scales.shape.num_elements() == 1 ? 0 : row * groups + group;
    out.zeros.push_back(zeros == nullptr ? int16_t{0} : zeros[at]);
    out.scales.push_back(scale_of(weight, row, group));
  }
}

}  // namespace quire::nn
