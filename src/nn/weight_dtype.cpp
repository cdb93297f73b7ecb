#include "nn/weight_dtype.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "ops/quantise.h"
#include "tensor/stored_values.h"
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

Result<std::vector<uint8_t>> converted(const TensorView& matrix, DType to, ops::Backend& backend) {
  constexpr int64_t kRowsOfTask = 64;
  const int64_t rows = matrix.shape[0];
  const int64_t columns = matrix.shape[1];
  const int64_t from_size = row_bytes(matrix.dtype, columns);
  const int64_t to_size = row_bytes(to, columns);
  std::vector<uint8_t> out(static_cast<size_t>(rows * to_size));
  std::atomic<bool> too_large{false};
  const auto convert_row = [&](const uint8_t* row, std::vector<float>& values, uint8_t* written) {
    read_stored_row(matrix.dtype, row, columns, values.data());
    if (to == DType::kF32) {
      std::memcpy(written, values.data(), static_cast<size_t>(to_size));
      return;
    }
    for (int64_t i = 0; i < columns; ++i) {
      const float value = values[static_cast<size_t>(i)];
      const uint16_t bits = to == DType::kF16 ? float_to_half(value) : float_to_bfloat16(value);
      if (to == DType::kF16 && std::isfinite(value) && (bits & 0x7fff) == 0x7c00) too_large = true;
      std::memcpy(written + 2 * i, &bits, sizeof(bits));
    }
  };
  backend.host_parallel_for((rows + kRowsOfTask - 1) / kRowsOfTask, [&](int64_t task, int) {
    std::vector<float> values(static_cast<size_t>(columns));
    for (int64_t row = task * kRowsOfTask; row < std::min(rows, (task + 1) * kRowsOfTask); ++row) {
      convert_row(static_cast<const uint8_t*>(matrix.data) + row * from_size, values, out.data() + row * to_size);
    }
  });
  if (too_large) {
    return invalid_argument(
        "--dtype float16: a weight {} of {} holds numbers beyond 65504, which float16 has no room for; choose bfloat16 "
        "or auto",
        matrix.shape.to_string(), name(matrix.dtype));
  }
  return out;
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
