#include "nn/widened_weights.h"

#include <algorithm>

#include <fmt/format.h>

#include "types/memory_plan.h"

namespace quire::nn {

void WidenedWeights::add(DType dtype, int64_t tensors, int64_t stored_bytes, int64_t packed_bytes) {
  auto type = std::ranges::find(types_, dtype, &Type::dtype);
  if (type == types_.end()) type = types_.insert(types_.end(), Type{.dtype = dtype});
  type->tensors += tensors;
  type->stored_bytes += stored_bytes;
  type->packed_bytes += packed_bytes;
}

std::string WidenedWeights::to_string() const {
  std::string text;
  for (const Type& type : types_) {
    text += fmt::format("{}{}: {} {} of {} in the file take {}", text.empty() ? "" : "; ", name(type.dtype),
                        type.tensors, type.tensors == 1 ? "matrix" : "matrices", format_bytes(type.stored_bytes),
                        format_bytes(type.packed_bytes));
  }
  return text;
}

}  // namespace quire::nn
