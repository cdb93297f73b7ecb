#include "nn/weight_formats.h"

#include <algorithm>
#include <cstring>

#include "nn/bitsandbytes_weights.h"
#include "nn/compressed_weights.h"
#include "nn/fp4_weights.h"
#include "nn/gptq_weights.h"
#include "nn/hqq_weights.h"
#include "nn/quark_weights.h"
#include "nn/scaled_weights.h"
#include "nn/torchao_weights.h"
#include "tensor/stored_values.h"

namespace quire::nn {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

DType as_stored(const StoredWeight& weight) {
  return weight.stored;
}

// 1. One tensor: numbers, or GGUF's blocks of them along its rows.

bool are_numbers(const Checkpoint& /*checkpoint*/, const WeightSpec& /*spec*/, const CheckpointTensor& codes) {
  const DType dtype = codes.view.dtype;
  return info(dtype).block_values == 1 && dtype != DType::kF8E4M3 && dtype != DType::kF8E5M2 && dtype != DType::kI8 &&
         dtype != DType::kU8 && dtype != DType::kI32;
}
bool are_blocks(const Checkpoint& /*checkpoint*/, const WeightSpec& /*spec*/, const CheckpointTensor& codes) {
  return info(codes.view.dtype).block_values != 1;
}

Status resolve_tensor(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare, StoredWeight& out) {
  const CheckpointTensor* codes = declare_codes(checkpoint, spec, declare);
  if (codes == nullptr) return {};
  const DType dtype = codes->view.dtype;
  out.codes = codes->view;
  out.grain = info(dtype).block_values;
  if (out.grain != 1) QUIRE_RETURN_IF_ERROR(refuse_transposed(spec, dtype));
  const Shape& shape = codes->view.shape;
  const int64_t columns = shape.rank() == 0 ? 1 : shape[shape.rank() - 1];
  out.set_layout(dtype, columns == 0 ? 0 : shape.num_elements() / columns, columns);
  out.turned = spec.transposed;
  return {};
}

void read_tensor(const StoredWeight& weight, int64_t row, DType form, uint8_t* out) {
  const DType stored = weight.stored;
  const uint8_t* from = static_cast<const uint8_t*>(weight.codes.data) +
                        row * row_bytes(stored, weight.stored_columns) + row_bytes(stored, weight.first_column);
  if (form != stored) return read_stored_row(stored, from, weight.num_columns, reinterpret_cast<float*>(out));
  std::memcpy(out, from, static_cast<size_t>(row_bytes(stored, weight.num_columns)));
}

// 2. MXFP4 of stacks in two tensors: blocks of 16 bytes, values 2i and 2i + 1 in the halves of byte i, and a byte of
// exponent for each.

constexpr int64_t kMxValues = 32;

bool are_mx_blocks(const Checkpoint& /*checkpoint*/, const WeightSpec& spec, const CheckpointTensor& /*codes*/) {
  return spec.shape.rank() == 3;
}

Status resolve_mx_blocks(const Checkpoint& /*checkpoint*/, const WeightSpec& spec, DeclareTensor declare,
                         StoredWeight& out) {
  const int64_t count = spec.shape[0];
  const int64_t rows = spec.shape[1];
  const int64_t columns = spec.shape[2];
  const std::string blocks = spec.name + "_blocks";
  const CheckpointTensor* codes = declare({blocks, {count, rows, columns / kMxValues, kMxValues / 2}});
  const CheckpointTensor* scales = declare({spec.name + "_scales", {count, rows, columns / kMxValues}});
  if (codes == nullptr || scales == nullptr) return {};
  out.codes = codes->view;
  out.scales = scales->view;
  if (out.codes.dtype != DType::kU8 || out.scales.dtype != DType::kU8 || columns % kMxValues != 0) {
    return unimplemented("{}: blocks of {} with scales of {} for rows of {} values; supported: U8 of whole 32", blocks,
                         name(out.codes.dtype), name(out.scales.dtype), columns);
  }
  out.grain = out.scale_columns = kMxValues;
  out.set_layout(DType::kMXFP4, count * rows, columns);
  return {};
}

// As DType::kMXFP4 has it: the exponent, then values i and i + 16 in the halves of byte i.
void join_mx_block(uint8_t exponent, const uint8_t* codes, uint8_t* out) {
  const auto code = [codes](int i) { return i % 2 == 0 ? codes[i / 2] & 0x0f : codes[i / 2] >> 4; };
  *out++ = exponent;
  for (int i = 0; i < 16; ++i) *out++ = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
}

void read_mx_blocks(const StoredWeight& weight, int64_t row, DType form, uint8_t* out) {
  const int64_t first = (row * weight.stored_columns + weight.first_column) / kMxValues;
  const auto* exponents = static_cast<const uint8_t*>(weight.scales.data) + first;
  const auto* codes = static_cast<const uint8_t*>(weight.codes.data) + first * (kMxValues / 2);
  for (int64_t i = 0; i < weight.num_columns / kMxValues; ++i, codes += kMxValues / 2) {
    uint8_t block[17];
    join_mx_block(exponents[i], codes, block);
    if (form == DType::kMXFP4) {
      out = std::copy(std::begin(block), std::end(block), out);
      continue;
    }
    for (int64_t k = 0; k < kMxValues; ++k, out += sizeof(uint16_t)) {
      const uint16_t bits = float_to_bfloat16(stored_value(DType::kMXFP4, block, k));
      std::memcpy(out, &bits, sizeof(bits));
    }
  }
}

// What a cache of 8 bits would be divided by; its format is for the user to choose.
constexpr std::string_view kBesideCodes[] = {".q_scale",      ".k_scale",      ".v_scale",      ".output_scale",
                                             ".q_zero_point", ".k_zero_point", ".v_zero_point", ".kv_scale"};

// Weights of the layouts of coded_weights.h.
constexpr WeightFormat of_codes(std::string_view name, std::string_view ending, decltype(WeightFormat::fits) fits,
                                decltype(WeightFormat::resolve) resolve, decltype(WeightFormat::read) read) {
  return {.name = name,
          .ending = ending,
          .fits = fits,
          .resolve = resolve,
          .form = form_of_codes,
          .widened = DType::kF32,
          .read = read,
          .ignored = kBesideCodes};
}

constexpr WeightFormat kFormats[] = {
    {.name = "a tensor of numbers",
     .ending = "",
     .fits = are_numbers,
     .resolve = resolve_tensor,
     .form = as_stored,
     .widened = std::nullopt,
     .read = read_tensor},
    {.name = "a tensor of blocks",
     .ending = "",
     .fits = are_blocks,
     .resolve = resolve_tensor,
     .form = as_stored,
     .widened = DType::kF32,
     .read = read_tensor},
    {.name = "8-bit floats with scales",
     .ending = "",
     .fits = are_float8,
     .resolve = resolve_float8,
     .form = form_of_float8,
     .widened = DType::kBF16,
     .read = read_float8,
     .ignored = kBesideFloat8},
    {.name = "MXFP4 in blocks and scales",
     .ending = "_blocks",
     .fits = are_mx_blocks,
     .resolve = resolve_mx_blocks,
     .form = as_stored,
     .widened = DType::kBF16,
     .read = read_mx_blocks},
    of_codes("GPTQ", ".qweight", are_gptq<1>, resolve_gptq, read_codes<unpack_gptq<1>>),
    of_codes("GPTQ (gptq_v2)", ".qweight", are_gptq<0>, resolve_gptq, read_codes<unpack_gptq<0>>),
    of_codes("GPTQ in Marlin's tiles", ".B", are_marlin, resolve_marlin, read_codes<unpack_marlin>),
    of_codes("AWQ", ".qweight", are_awq<false>, resolve_awq, read_codes<unpack_awq<false>>),
    of_codes("AWQ (gemv)", ".qweight", are_awq<true>, resolve_awq, read_codes<unpack_awq<true>>),
    of_codes("packed whole numbers", ".weight_packed", are_packed, resolve_packed, read_codes<unpack_packed>),
    of_codes("whole numbers of 8 bits", "", are_bytes, resolve_bytes, read_codes<unpack_bytes>),
    of_codes("NVFP4 in tensors of its own", ".weight_packed", are_nvfp4, resolve_nvfp4, read_nvfp4),
    of_codes("NVFP4 (modelopt)", "", are_nvfp4, resolve_nvfp4, read_nvfp4),
    of_codes("MXFP4 in tensors of its own", ".weight_packed", are_mxfp4, resolve_mxfp4, read_mxfp4),
    of_codes("MXFP4 (Quark)", "", are_mxfp4, resolve_mxfp4, read_mxfp4),
    of_codes("Quark's int4", "", are_quark_of<true>, resolve_quark, read_codes<unpack_quark<true>>),
    of_codes("Quark's uint4", "", are_quark_of<false>, resolve_quark, read_codes<unpack_quark<false>>),
    of_codes("bitsandbytes' nf4", "", are_levels<DType::kNF4>, resolve_levels<DType::kNF4>,
             read_codes<unpack_levels<DType::kNF4>>),
    of_codes("bitsandbytes' fp4", "", are_levels<DType::kFP4>, resolve_levels<DType::kFP4>,
             read_codes<unpack_levels<DType::kFP4>>),
    of_codes("whole numbers of torchao", "._weight_qdata", are_torchao, resolve_torchao, read_codes<unpack_torchao>),
    of_codes("HQQ of 8 bits", ".W_q", are_hqq<8>, resolve_hqq, read_codes<unpack_hqq<8>>),
    of_codes("HQQ of 4 bits", ".W_q", are_hqq<4>, resolve_hqq, read_codes<unpack_hqq<4>>),
    of_codes("HQQ of 3 bits", ".W_q", are_hqq<3>, resolve_hqq, read_codes<unpack_hqq<3>>),
    of_codes("HQQ of 2 bits", ".W_q", are_hqq<2>, resolve_hqq, read_codes<unpack_hqq<2>>),
    of_codes("HQQ of 1 bit", ".W_q", are_hqq<1>, resolve_hqq, read_codes<unpack_hqq<1>>),
    of_codes("LLM.int8()", "", are_llm_int8, resolve_llm_int8, read_codes<unpack_llm_int8>),
};

const CheckpointTensor* find_codes(const Checkpoint& checkpoint, const WeightFormat& format, std::string_view weight) {
  if (format.ending.empty()) return checkpoint.find(weight);
  constexpr std::string_view kWeight = ".weight";
  if (weight.ends_with(kWeight)) weight.remove_suffix(kWeight.size());
  return checkpoint.find(std::string(weight) + std::string(format.ending));
}

// What has no tensor at all is missed by its plain name.
const WeightFormat& format_of(const Checkpoint& checkpoint, const WeightSpec& spec) {
  for (const WeightFormat& format : kFormats) {
    const CheckpointTensor* codes = find_codes(checkpoint, format, spec.name);
    if (codes != nullptr && format.fits(checkpoint, spec, *codes)) return format;
  }
  return kFormats[0];
}

}  // namespace

bool has_weight(const Checkpoint& checkpoint, std::string_view name) {
  return std::ranges::any_of(
      kFormats, [&](const WeightFormat& format) { return find_codes(checkpoint, format, name) != nullptr; });
}

Result<StoredWeight> resolve_weight(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare) {
  const WeightFormat& format = format_of(checkpoint, spec);
  StoredWeight weight{.format = &format, .name = spec.name};
  QUIRE_RETURN_IF_ERROR(format.resolve(checkpoint, spec, declare, weight));
  if (weight.runs.empty()) return StoredWeight();
  return weight;
}

const CheckpointTensor* declare_codes(const Checkpoint& checkpoint, const WeightSpec& spec, DeclareTensor declare) {
  Shape shape = spec.shape;
  if (spec.transposed && shape.rank() == 2) shape = {shape[1], shape[0]};
  if (spec.transposed && shape.rank() == 3) shape = {shape[0], shape[2], shape[1]};
  const CheckpointTensor* found = checkpoint.find(spec.name);
  // GGUF drops an outer dimension of 1.
  if (found != nullptr && found->view.shape.rank() == 1 && shape.rank() == 2 && shape[0] == 1) shape = {shape[1]};
  // A vector of one number may be stored as the number.
  if (found != nullptr && found->view.shape.rank() == 0 && shape == Shape{1}) shape = {};
  return declare({spec.name, shape});
}

Status refuse_transposed(const WeightSpec& spec, DType stored) {
  if (!spec.transposed) return {};
  return unimplemented("{}: a {} of {} that is stored transposed; supported: formats of single numbers", spec.name,
                       spec.shape.rank() == 3 ? "stack" : "matrix", name(stored));
}

}  // namespace quire::nn
