#include "nn/hqq_weights.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/text_quote.h"

namespace quire::nn {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

// Codes in a word, the first in the highest bits that are used.
struct Packing {
  std::string_view name;
  int bits;
  int codes;  // a word
  int word_bytes;
};
constexpr Packing kPackings[] = {
    {"8bit_u8", 8, 1, 1}, {"4bit_u8", 4, 2, 1}, {"3bit_32", 3, 10, 4}, {"2bit_u8", 2, 4, 1}, {"1bit_u8", 1, 8, 1}};

// What the library writes beside a weight for itself.
constexpr std::string_view kBesideHqq[] = {"nbits",
                                           "group_size",
                                           "shape",
                                           "axis",
                                           "packing",
                                           "view_as_float",
                                           "quant_scale",
                                           "quant_zero",
                                           "channel_wise",
                                           "optimize",
                                           "round_zero",
                                           "unpack_view_dtype",
                                           "offload_meta",
                                           "compute_dtype",
                                           "encoded_state_dict",
                                           "stores_quant_config"};

template <typename Whole>
int64_t whole_at(const TensorView& numbers, int64_t index) {
  Whole number;
  std::memcpy(&number, static_cast<const uint8_t*>(numbers.data) + index * static_cast<int64_t>(sizeof(Whole)),
              sizeof(Whole));
  return number;
}

// A number beside the weight `module`, of which the library writes each as a tensor.
Result<int64_t> number_beside(const Checkpoint& checkpoint, const std::string& module, std::string_view key) {
  const CheckpointTensor* tensor = checkpoint.find(fmt::format("{}.{}", module, key));
  if (tensor == nullptr || tensor->view.shape.num_elements() != 1 || tensor->view.data == nullptr)
    return data_loss("{}.{} is {}; expected one number", module, key,
                     tensor == nullptr ? "missing" : tensor->view.shape.to_string());
  const TensorView& view = tensor->view;
  switch (view.dtype) {
    case DType::kU8:
      return int64_t{*static_cast<const uint8_t*>(view.data)};
    case DType::kI32:
      return whole_at<int32_t>(view, 0);
    case DType::kI64:
      return whole_at<int64_t>(view, 0);
    default:
      return data_loss("{} is {}; expected U8, I32 or I64", tensor->name, name(view.dtype));
  }
}

// The letters of "X.packing"; empty: there are none.
std::string_view packing_text(const Checkpoint& checkpoint, const std::string& module) {
  const CheckpointTensor* tensor = checkpoint.find(module + ".packing");
  if (tensor == nullptr || tensor->view.dtype != DType::kU8 || tensor->view.data == nullptr) return {};
  return {static_cast<const char*>(tensor->view.data), static_cast<size_t>(tensor->view.bytes())};
}

// nullptr: none of those that are known.
const Packing* find_packing(std::string_view text) {
  for (const Packing& packing : kPackings) {
    if (packing.name == text) return &packing;
  }
  return nullptr;
}

Status check_hqq_shape(const Checkpoint& checkpoint, const std::string& module, const Shape& expected) {
  const CheckpointTensor* said = checkpoint.find(module + ".shape");
  if (said == nullptr) return {};
  if (said->view.shape != Shape{2} || said->view.dtype != DType::kI64 || said->view.data == nullptr)
    return data_loss("{} is {} {}; expected two of I64", said->name, name(said->view.dtype),
                     said->view.shape.to_string());
  const int64_t rows = whole_at<int64_t>(said->view, 0);
  const int64_t columns = whole_at<int64_t>(said->view, 1);
  if (rows == expected[0] && columns == expected[1]) return {};
  return data_loss("{} says [{}, {}]; expected {}", said->name, rows, columns, expected.to_string());
}

// How a weight's groups lie.
struct Groups {
  int64_t axis;
  int64_t size;
  int64_t count;
  int64_t lines() const { return axis == 1 ? count : size; }   // of the matrix whose rows are packed
  int64_t stride() const { return axis == 1 ? size : count; }  // numbers a line
};

Result<Groups> groups_of_hqq(const Checkpoint& checkpoint, const std::string& module, const Shape& shape) {
  Groups groups{};
  QUIRE_ASSIGN_OR_RETURN(groups.axis, number_beside(checkpoint, module, "axis"));
  QUIRE_ASSIGN_OR_RETURN(groups.size, number_beside(checkpoint, module, "group_size"));
  if (groups.axis != 0 && groups.axis != 1) return data_loss("{}.axis is {}; expected 0 or 1", module, groups.axis);
  const int64_t count = shape.num_elements();
  if (groups.size < 1 || groups.size > count || count % groups.size != 0)
    return data_loss("{}.group_size is {}; expected a divisor of a weight {}", module, groups.size, shape.to_string());
  groups.count = count / groups.size;
  // Else a row's first columns are of the group before; along axis 0 every column has a scale of its own anyway.
  if (groups.axis == 1 && shape[1] % groups.size != 0)
    return unimplemented("{}.group_size is {} along axis 1 of a weight {}; supported: groups that end with a row",
                         module, groups.size, shape.to_string());
  return groups;
}

}  // namespace

template <int kBits>
bool are_hqq(const Checkpoint& checkpoint, const WeightSpec& spec, const CheckpointTensor& /*codes*/) {
  const std::string_view text = packing_text(checkpoint, module_of(spec.name));
  if (text.empty() || spec.shape.rank() != 2) return false;
  const Packing* packing = find_packing(text);
  return (packing == nullptr ? 8 : packing->bits) == kBits;  // what is unknown is refused by resolve_hqq()
}
template bool are_hqq<1>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);
template bool are_hqq<2>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);
template bool are_hqq<3>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);
template bool are_hqq<4>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);
template bool are_hqq<8>(const Checkpoint&, const WeightSpec&, const CheckpointTensor&);

Status resolve_hqq(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const std::string module = module_of(spec.name);
  for (const std::string_view beside : kBesideHqq) {
    const CheckpointTensor* tensor = checkpoint.find(fmt::format("{}.{}", module, beside));
    if (tensor != nullptr) declare({.name = tensor->name, .shape = tensor->view.shape, .is_codes = true});
  }
  for (const std::string_view coded : {"quant_zero", "quant_scale"}) {
    if (checkpoint.find(fmt::format("{}.{}", module, coded)) == nullptr) continue;
    QUIRE_ASSIGN_OR_RETURN(const int64_t is_coded, number_beside(checkpoint, module, coded));
    if (is_coded != 0)
      return unimplemented("{}.{} is {}; supported: 0, scales and zeros that are numbers", module, coded, is_coded);
  }
  QUIRE_RETURN_IF_ERROR(check_hqq_shape(checkpoint, module, spec.shape));
  const std::string_view text = packing_text(checkpoint, module);
  const Packing* packing = find_packing(text);
  if (packing == nullptr)
    return unimplemented("{}.packing is {}; supported: 8bit_u8, 4bit_u8, 3bit_32, 2bit_u8, 1bit_u8", module,
                         checkpoint::in_quotes(text));
  QUIRE_ASSIGN_OR_RETURN(const Groups groups, groups_of_hqq(checkpoint, module, spec.shape));

  // Codes may be called floats, of whatever bytes the words have ("view_as_float").
  const CheckpointTensor* codes = checkpoint.find(module + ".W_q");
  declare({.name = codes->name, .shape = codes->view.shape, .is_codes = true});
  const int64_t word_lines = groups_of(groups.lines(), packing->codes);
  const int64_t bytes = word_lines * groups.stride() * packing->word_bytes;
  if (codes->view.bytes() != bytes || (packing->codes != 10 && groups.lines() % packing->codes != 0))
    return data_loss("{} is {} of {} bytes; expected {} bytes: {} of {} lines", codes->name,
                     codes->view.shape.to_string(), codes->view.bytes(), bytes, packing->name, groups.lines());
  const Shape shape = groups.axis == 1 ? Shape{groups.count, 1} : Shape{1, groups.count};
  const auto types = {DType::kF32, DType::kF16, DType::kBF16};
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* scales, declare_typed(declare, {module + ".scale", shape}, types));
  QUIRE_ASSIGN_OR_RETURN(const CheckpointTensor* zeros, declare_typed(declare, {module + ".zero", shape}, types));
  if (scales == nullptr || zeros == nullptr) return {};
  out.codes = codes->view;
  out.scales = scales->view;
  out.zeros = zeros->view;
  out.scale_rows = groups.stride();  // of the flat weight
  return hold_codes({.rows = spec.shape[0],
                     .columns = spec.shape[1],
                     .bits = packing->bits,
                     .group_columns = groups.axis == 1 ? groups.size : 1,
                     .zeros_are_fractions = true},
                    out);
}

template <int kBits>
void unpack_hqq(const StoredWeight& weight, int64_t row, CodedRow& out) {
  constexpr const Packing& kPacking = *std::ranges::find(kPackings, kBits, &Packing::bits);
  const int64_t stride = weight.scale_rows;
  const int64_t word_lines = weight.codes.bytes() / (stride * kPacking.word_bytes);
  const int64_t begin = row * weight.stored_columns;
  const int64_t end = begin + weight.stored_columns;
  for (int64_t at = begin; at < end;) {
    const int64_t line = at / stride;
    const int64_t line_end = std::min((line + 1) * stride, end);
    const int shift = (kPacking.codes - 1 - static_cast<int>(line / word_lines)) * kBits;
    const auto* from = static_cast<const uint8_t*>(weight.codes.data) +
                       (line % word_lines * stride + at % stride) * kPacking.word_bytes;
    for (; at < line_end; ++at, from += kPacking.word_bytes) {
      uint32_t word = 0;
      std::memcpy(&word, from, kPacking.word_bytes);
      out.codes.push_back(static_cast<int16_t>(word >> shift & ((1u << kBits) - 1)));
    }
  }
  // Groups are lines, or of each line the numbers at the same place: then every column has a scale of its own.
  const bool are_lines = stride == weight.scale_columns;
  const bool is_one = weight.scales.shape.num_elements() == 1;
  for (int64_t at = begin; at < end; at += weight.scale_columns) {
    const int64_t group = is_one ? 0 : are_lines ? at / stride : at % stride;
    out.scales.push_back(number_at(weight.scales, group));
    out.zeros.push_back(number_at(weight.zeros, group));
  }
}
template void unpack_hqq<1>(const StoredWeight&, int64_t, CodedRow&);
template void unpack_hqq<2>(const StoredWeight&, int64_t, CodedRow&);
template void unpack_hqq<3>(const StoredWeight&, int64_t, CodedRow&);
template void unpack_hqq<4>(const StoredWeight&, int64_t, CodedRow&);
template void unpack_hqq<8>(const StoredWeight&, int64_t, CodedRow&);

}  // namespace quire::nn
