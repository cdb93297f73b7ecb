// The key-value pairs of a GGUF file, read where they lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "checkpoint/byte_reader.h"
#include "checkpoint/gguf_types.h"

namespace quire::checkpoint {

struct GgufValue {
  GgufValueType type = GgufValueType::kUint8;
  GgufValueType element_type = GgufValueType::kUint8;  // of an array
  uint64_t count = 1;                                  // elements of an array
  std::span<const std::byte> data;  // the number; a string's characters; an array's elements as they are encoded
};

// Values are views into the file, which must outlive the metadata. An accessor gives nullopt where the key is absent;
// its error is data_loss naming key, found type and expected type.
class GgufMetadata {
 public:
  // Reads `count` pairs and checks every length, type, bool and key.
  static Result<GgufMetadata> read(ByteReader& reader, uint64_t count);

  // All of them, to be written once more.
  const std::unordered_map<std::string_view, GgufValue>& values() const { return values_; }
  bool has(std::string_view key) const { return values_.contains(key); }
  bool is_array(std::string_view key) const;
  Result<std::optional<int64_t>> integer(std::string_view key) const;  // any integer type whose value fits
  Result<std::optional<double>> number(std::string_view key) const;    // a float or an integer
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string_view>> text(std::string_view key) const;
  Result<std::optional<std::vector<std::string_view>>> texts(std::string_view key) const;
  Result<std::optional<std::vector<int64_t>>> integers(std::string_view key) const;
  Result<std::optional<std::vector<float>>> floats(std::string_view key) const;
  Result<std::optional<std::vector<bool>>> booleans(std::string_view key) const;  // of bools, or of 0 and 1
  // Elements of an array of any type, without reading them.
  Result<std::optional<int64_t>> array_size(std::string_view key) const;

 private:
  const GgufValue* find(std::string_view key) const;
  Result<const GgufValue*> find_array(std::string_view key, std::string_view expected) const;
  std::unordered_map<std::string_view, GgufValue> values_;
};

}  // namespace quire::checkpoint
