#include "nn/weight_dtype.h"

#include <algorithm>

#include "ops/quantise.h"
#include "types/memory_plan.h"

namespace quire::nn {
std::optional<DType> wanted_dtype(WeightDType choice) {
  switch (choice) {
    case WeightDType::kAuto:
      break;
    case WeightDType::kFloat32:
      return DType::kF32;
    case WeightDType::kFloat16:
      return DType::kF16;
    case WeightDType::kBFloat16:
      return DType::kBF16;
  }
  return std::nullopt;
}

DType held_dtype(DType stored, std::optional<DType> wanted) {
  return wanted && ops::can_be_quantised(stored) ? *wanted : stored;
}

void ConversionReport::add_converted(int64_t stored_bytes, int64_t bytes) {
  ++num_converted_;
  stored_bytes_ += stored_bytes;
  bytes_ += bytes;
}

void ConversionReport::add_kept(DType dtype, int64_t stored_bytes) {
  ++num_kept_;
  kept_bytes_ += stored_bytes;
  if (std::ranges::find(kept_, dtype) == kept_.end()) kept_.push_back(dtype);
}

std::string ConversionReport::to_string() const {
  std::string text;
  if (num_converted_ > 0) {
    text = fmt::format("{} weights of {} to {}", num_converted_, format_bytes(stored_bytes_), format_bytes(bytes_));
  }
  if (num_kept_ == 0) return text;
  std::string formats;
  for (const DType dtype : kept_) formats += fmt::format("{}{}", formats.empty() ? "" : ", ", name(dtype));
  return text + fmt::format("{}{} weights of {} stay in their own format ({})", text.empty() ? "" : "; ", num_kept_,
                            format_bytes(kept_bytes_), formats);
}

}  // namespace quire::nn
