#include "checkpoint/gguf_metadata.h"

#include <limits>
#include <string>

#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

// GGUF's own bound.
constexpr size_t kMostKeyBytes = 65535;

std::string kind_of(const GgufValue& value) {
  if (value.type != GgufValueType::kArray) return std::string(name(value.type));
  return fmt::format("array of {} {}", value.count, name(value.element_type));
}

Status wrong_type(std::string_view key, const GgufValue& found, std::string_view expected) {
  return data_loss("metadata {}: found {}, expected {}", in_quotes(key), kind_of(found), expected);
}

Result<GgufValueType> read_value_type(ByteReader& reader, std::string_view what) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t id, reader.number<uint32_t>(what));
  if (id > kMostGgufValueType) {
    return data_loss("{} is {}, expected a value type from 0 to {}", what, id, kMostGgufValueType);
  }
  return static_cast<GgufValueType>(id);
}

Status check_bools(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    if (byte > std::byte{1}) return data_loss("a bool holds {}, expected 0 or 1", std::to_integer<int>(byte));
  }
  return {};
}

Status read_array(ByteReader& reader, GgufValue& value) {
  QUIRE_ASSIGN_OR_RETURN(value.element_type, read_value_type(reader, "the array's element type"));
  QUIRE_ASSIGN_OR_RETURN(value.count, reader.number<uint64_t>("the array's length"));
  if (value.element_type == GgufValueType::kArray) return unimplemented("arrays of arrays are not supported");
  const bool strings = value.element_type == GgufValueType::kString;
  const size_t least_bytes = strings ? sizeof(uint64_t) : fixed_bytes(value.element_type);
  if (value.count > reader.remaining() / least_bytes) {
    return data_loss("an array of {} {} values cannot fit in the {} bytes that the file has left", value.count,
                     name(value.element_type), reader.remaining());
  }
  if (!strings) {
    QUIRE_ASSIGN_OR_RETURN(value.data, reader.take(value.count * least_bytes, "the array"));
    return value.element_type == GgufValueType::kBool ? check_bools(value.data) : Status();
  }
  const size_t begin = reader.position();
  for (uint64_t i = 0; i < value.count; ++i) QUIRE_RETURN_IF_ERROR(reader.text("a string of the array").status());
  value.data = reader.since(begin);
  return {};
}

Result<GgufValue> read_value(ByteReader& reader) {
  GgufValue value;
  QUIRE_ASSIGN_OR_RETURN(value.type, read_value_type(reader, "the value's type"));
  if (value.type == GgufValueType::kArray) {
    QUIRE_RETURN_IF_ERROR(read_array(reader, value));
  } else if (value.type == GgufValueType::kString) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view text, reader.text("the string"));
    value.data = std::as_bytes(std::span(text));
  } else {
    QUIRE_ASSIGN_OR_RETURN(value.data, reader.take(fixed_bytes(value.type), "the value"));
    if (value.type == GgufValueType::kBool) QUIRE_RETURN_IF_ERROR(check_bools(value.data));
  }
  return value;
}

// REQUIRES: is_integer(type). nullopt: more than an int64 holds.
std::optional<int64_t> integer_at(GgufValueType type, const std::byte* data) {
  switch (type) {
    case GgufValueType::kUint8:
      return load<uint8_t>(data);
    case GgufValueType::kInt8:
      return load<int8_t>(data);
    case GgufValueType::kUint16:
      return load<uint16_t>(data);
    case GgufValueType::kInt16:
      return load<int16_t>(data);
    case GgufValueType::kUint32:
      return load<uint32_t>(data);
    case GgufValueType::kInt32:
      return load<int32_t>(data);
    case GgufValueType::kInt64:
      return load<int64_t>(data);
    default:
      break;
  }
  const uint64_t value = load<uint64_t>(data);
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(value);
}

Status too_large(std::string_view key) {
  return data_loss("metadata {}: the number is too large, expected at most 2^63-1", in_quotes(key));
}

}  // namespace

Result<GgufMetadata> GgufMetadata::read(ByteReader& reader, uint64_t count) {
  // A pair takes at least its key's length, one character, its type and one byte.
  constexpr uint64_t kLeastBytes = sizeof(uint64_t) + 1 + sizeof(uint32_t) + 1;
  if (count > reader.remaining() / kLeastBytes) {
    return data_loss("metadata count {} cannot fit in the {} bytes that follow", count, reader.remaining());
  }
  GgufMetadata metadata;
  for (uint64_t i = 0; i < count; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view key, reader.text(fmt::format("metadata key {}", i)));
    if (key.empty() || key.size() > kMostKeyBytes) {
      return data_loss("metadata key {} has {} bytes, expected 1 to {}", i, key.size(), kMostKeyBytes);
    }
    auto value = read_value(reader);
    if (!value.ok()) return value.status().with_prefix(fmt::format("metadata {}: ", in_quotes(key)));
    if (!metadata.values_.emplace(key, *value).second) return data_loss("duplicate metadata key {}", in_quotes(key));
  }
  return metadata;
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool GgufMetadata::is_array(std::string_view key) const {
  const GgufValue* value = find(key);
  return value != nullptr && value->type == GgufValueType::kArray;
}

Result<std::optional<int64_t>> GgufMetadata::integer(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<int64_t>();
  if (!is_integer(value->type)) return wrong_type(key, *value, "an integer");
  const std::optional<int64_t> number = integer_at(value->type, value->data.data());
  if (!number) return too_large(key);
  return number;
}

Result<std::optional<double>> GgufMetadata::number(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<double>();
  if (value->type == GgufValueType::kFloat32) return std::optional<double>(load<float>(value->data.data()));
  if (value->type == GgufValueType::kFloat64) return std::optional<double>(load<double>(value->data.data()));
  if (!is_integer(value->type)) return wrong_type(key, *value, "a number");
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> whole, integer(key));
  return std::optional<double>(static_cast<double>(*whole));
}

Result<std::optional<bool>> GgufMetadata::boolean(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type != GgufValueType::kBool) return wrong_type(key, *value, "a bool");
  return std::optional<bool>(value->data.front() == std::byte{1});
}

Result<std::optional<std::string_view>> GgufMetadata::text(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type != GgufValueType::kString) return wrong_type(key, *value, "a string");
  return std::optional<std::string_view>(
      std::string_view(reinterpret_cast<const char*>(value->data.data()), value->data.size()));
}

Result<const GgufValue*> GgufMetadata::find_array(std::string_view key, std::string_view expected) const {
  const GgufValue* value = find(key);
  if (value != nullptr && value->type != GgufValueType::kArray) return wrong_type(key, *value, expected);
  return value;
}

Result<std::optional<std::vector<std::string_view>>> GgufMetadata::texts(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of strings";
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, find_array(key, kExpected));
  if (value == nullptr) return std::optional<std::vector<std::string_view>>();
  if (value->element_type != GgufValueType::kString) return wrong_type(key, *value, kExpected);
  std::vector<std::string_view> texts;
  texts.reserve(static_cast<size_t>(value->count));
  ByteReader reader(value->data);
  for (uint64_t i = 0; i < value->count; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view text, reader.text(key));
    texts.push_back(text);
  }
  return std::optional(std::move(texts));
}

Result<std::optional<std::vector<int64_t>>> GgufMetadata::integers(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of integers";
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, find_array(key, kExpected));
  if (value == nullptr) return std::optional<std::vector<int64_t>>();
  if (!is_integer(value->element_type)) return wrong_type(key, *value, kExpected);
  std::vector<int64_t> numbers;
  numbers.reserve(static_cast<size_t>(value->count));
  const size_t stride = fixed_bytes(value->element_type);
  for (size_t i = 0; i < value->count; ++i) {
    const std::optional<int64_t> number = integer_at(value->element_type, value->data.data() + i * stride);
    if (!number) return too_large(key);
    numbers.push_back(*number);
  }
  return std::optional(std::move(numbers));
}

Result<std::optional<std::vector<float>>> GgufMetadata::floats(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of float32";
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, find_array(key, kExpected));
  if (value == nullptr) return std::optional<std::vector<float>>();
  if (value->element_type != GgufValueType::kFloat32) return wrong_type(key, *value, kExpected);
  std::vector<float> numbers(static_cast<size_t>(value->count));
  if (!numbers.empty()) std::memcpy(numbers.data(), value->data.data(), value->data.size());
  return std::optional(std::move(numbers));
}

Result<std::optional<std::vector<bool>>> GgufMetadata::booleans(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of bools";
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, find_array(key, kExpected));
  if (value == nullptr) return std::optional<std::vector<bool>>();
  std::vector<bool> answers;
  if (value->element_type == GgufValueType::kBool) {
    for (const std::byte answer : value->data) answers.push_back(answer == std::byte{1});
    return std::optional(std::move(answers));
  }
  if (!is_integer(value->element_type)) return wrong_type(key, *value, kExpected);
  if (!is_integer(value->element_type)) return wrong_type(key, *value, kExpected);
  const size_t stride = value->data.size() / std::max<size_t>(value->count, 1);
  for (size_t i = 0; i < value->count; ++i) {
    const int64_t number = integer_at(value->element_type, value->data.data() + i * stride).value_or(-1);
    if (number != 0 && number != 1) return data_loss("metadata {} holds {}, expected 0 or 1", in_quotes(key), number);
    answers.push_back(number == 1);
  }
  return std::optional(std::move(answers));
}

Result<std::optional<int64_t>> GgufMetadata::array_size(std::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const GgufValue* value, find_array(key, "an array"));
  if (value == nullptr) return std::optional<int64_t>();
  return std::optional<int64_t>(static_cast<int64_t>(value->count));
}

}  // namespace quire::checkpoint
