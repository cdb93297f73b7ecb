// The type ids of GGUF: of tensors (ggml's) and of metadata values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "tensor/dtype.h"

namespace quire::checkpoint {

// The dtype of ggml type `id`. Errors: unimplemented naming a type that exists and is not built, data_loss for an id
// that names none.
Result<DType> tensor_dtype_of_ggml(uint32_t id);
// The other way round. REQUIRES: a type of GGUF's.
uint32_t ggml_type_of(DType dtype);

enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
inline constexpr uint32_t kMostGgufValueType = 12;

// "uint8", "string", ...
std::string_view name(GgufValueType type);
// Bytes of one value; 0 for strings and arrays, which say their own length.
size_t fixed_bytes(GgufValueType type);
bool is_integer(GgufValueType type);

}  // namespace quire::checkpoint
