#include "checkpoint/gguf_types.h"

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.h"

namespace quire::checkpoint {
namespace {

struct GgmlType {
  uint32_t id;
  std::string_view name;
  std::optional<DType> dtype;  // nullopt: known, not built
  bool withdrawn = false;      // once written, no longer part of the format
};

constexpr auto kGgmlTypes = std::to_array<GgmlType>({
    {0, "F32", DType::kF32},
    {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},
    {3, "Q4_1", DType::kQ4_1},
    {4, "Q4_2", std::nullopt, true},
    {5, "Q4_3", std::nullopt, true},
    {6, "Q5_0", DType::kQ5_0},
    {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},
    {9, "Q8_1", std::nullopt},
    {10, "Q2_K", DType::kQ2_K},
    {11, "Q3_K", DType::kQ3_K},
    {12, "Q4_K", DType::kQ4_K},
    {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},
    {15, "Q8_K", DType::kQ8_K},
    {16, "IQ2_XXS", DType::kIQ2_XXS},
    {17, "IQ2_XS", DType::kIQ2_XS},
    {18, "IQ3_XXS", DType::kIQ3_XXS},
    {19, "IQ1_S", DType::kIQ1_S},
    {20, "IQ4_NL", DType::kIQ4_NL},
    {21, "IQ3_S", DType::kIQ3_S},
    {22, "IQ2_S", DType::kIQ2_S},
    {23, "IQ4_XS", DType::kIQ4_XS},
    {24, "I8", std::nullopt},
    {25, "I16", std::nullopt},
    {26, "I32", std::nullopt},
    {27, "I64", std::nullopt},
    {28, "F64", std::nullopt},
    {29, "IQ1_M", DType::kIQ1_M},
    {30, "BF16", DType::kBF16},
    {31, "Q4_0_4_4", std::nullopt, true},
    {32, "Q4_0_4_8", std::nullopt, true},
    {33, "Q4_0_8_8", std::nullopt, true},
    {34, "TQ1_0", DType::kTQ1_0},
    {35, "TQ2_0", DType::kTQ2_0},
    {36, "IQ4_NL_4_4", std::nullopt, true},
    {37, "IQ4_NL_4_8", std::nullopt, true},
    {38, "IQ4_NL_8_8", std::nullopt, true},
    {39, "MXFP4", DType::kMXFP4},
    {40, "NVFP4", DType::kNVFP4},
    {41, "Q1_0", std::nullopt},
});

std::string supported_names() {
  std::string names;
  for (const GgmlType& type : kGgmlTypes) {
    if (!type.dtype) continue;
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

struct ValueTypeInfo {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<ValueTypeInfo, kMostGgufValueType + 1> kValueTypes = {{
    {"uint8", 1},
    {"int8", 1},
    {"uint16", 2},
    {"int16", 2},
    {"uint32", 4},
    {"int32", 4},
    {"float32", 4},
    {"bool", 1},
    {"string", 0},
    {"array", 0},
    {"uint64", 8},
    {"int64", 8},
    {"float64", 8},
}};

}  // namespace

Result<DType> tensor_dtype_of_ggml(uint32_t id) {
  const auto type = std::find_if(kGgmlTypes.begin(), kGgmlTypes.end(), [id](const GgmlType& t) { return t.id == id; });
  if (type == kGgmlTypes.end()) return data_loss("has type id {}, which names no tensor type", id);
  if (type->dtype) return *type->dtype;
  if (type->withdrawn) {
    return unimplemented("has type {}, which GGUF has withdrawn; convert the model again to one of: {}", type->name,
                         supported_names());
  }
  return unimplemented("has type {}, which is not supported yet; supported: {}", type->name, supported_names());
}

uint32_t ggml_type_of(DType dtype) {
  const auto type = std::ranges::find_if(kGgmlTypes, [dtype](const GgmlType& t) { return t.dtype == dtype; });
  QUIRE_CHECK(type != kGgmlTypes.end());
  return type->id;
}

std::string_view name(GgufValueType type) {
  return kValueTypes.at(static_cast<size_t>(type)).name;
}

size_t fixed_bytes(GgufValueType type) {
  return kValueTypes.at(static_cast<size_t>(type)).bytes;
}

bool is_integer(GgufValueType type) {
  switch (type) {
    case GgufValueType::kUint8:
    case GgufValueType::kInt8:
    case GgufValueType::kUint16:
    case GgufValueType::kInt16:
    case GgufValueType::kUint32:
    case GgufValueType::kInt32:
    case GgufValueType::kUint64:
    case GgufValueType::kInt64:
      return true;
    default:
      return false;
  }
}

}  // namespace quire::checkpoint
