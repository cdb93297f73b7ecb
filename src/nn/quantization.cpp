#include "nn/quantization.h"

#include "types/memory_plan.h"

namespace quire::nn {

std::optional<DType> quantised_dtype(Quantization quantization, WeightRole role, int64_t columns) {
  const auto fits = [columns](DType dtype) { return columns % info(dtype).block_values == 0; };
  if (role == WeightRole::kExact) return std::nullopt;
  if (quantization == Quantization::kFp8) return DType::kF8E4M3;
  if (!fits(DType::kQ8_0)) return std::nullopt;
  switch (quantization) {
    case Quantization::kNone:
    case Quantization::kFp8:
    case Quantization::kAwq:
    case Quantization::kGptq:
    case Quantization::kCompressedTensors:
    case Quantization::kBitsandbytes:
    case Quantization::kModelopt:
    case Quantization::kTorchao:
    case Quantization::kHqq:
    case Quantization::kFbgemmFp8:
    case Quantization::kMxfp4:
    case Quantization::kQuark:
      return std::nullopt;
    case Quantization::kInt8:
      return DType::kQ8_0;
    case Quantization::kInt4:
      if (role == WeightRole::kHead) return DType::kQ8_0;
      return fits(DType::kQ4_K) ? DType::kQ4_K : DType::kQ4_1;
  }
  return std::nullopt;
}

std::string QuantizationReport::to_string() const {
  if (quantization == Quantization::kNone) return "";
  std::string formats;
  for (const DType dtype : dtypes) formats += fmt::format("{}{}", formats.empty() ? "" : ", ", quire::name(dtype));
  std::string text = fmt::format("{}: {} matrices of {} to {} of {}", name(quantization), num_matrices,
                                 format_bytes(stored_bytes), format_bytes(packed_bytes), formats);
  if (num_matrices == 0) text = fmt::format("{}: no matrix", name(quantization));
  if (seconds > 0)
    text += fmt::format(" in {:.2f} s ({:.2f} GB/s)", seconds, static_cast<double>(stored_bytes) / seconds / 1e9);
  if (num_kept > 0) {
    text += fmt::format("; {} matrices of {} stay as they are stored: their rows are no multiple of 32 values",
                        num_kept, format_bytes(kept_bytes));
  }
  return text;
}

}  // namespace quire::nn
