// Reads little-endian numbers and strings off the front of a span, never past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/status.h"

namespace quire::checkpoint {

// A number at `data`, which need not be aligned. The machines that we build for are little-endian, as the formats are.
template <typename T>
T load(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }
  std::span<const std::byte> since(size_t begin) const { return bytes_.subspan(begin, position_ - begin); }

  // `what` names the field in the error: data_loss.
  template <typename T>
  Result<T> number(std::string_view what) {
    QUIRE_RETURN_IF_ERROR(require(sizeof(T), what));
    const T value = load<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return value;
  }
  Result<std::span<const std::byte>> take(uint64_t count, std::string_view what) {
    QUIRE_RETURN_IF_ERROR(require(count, what));
    const auto taken = bytes_.subspan(position_, static_cast<size_t>(count));
    position_ += static_cast<size_t>(count);
    return taken;
  }
  // A 64-bit length, then as many bytes.
  Result<std::string_view> text(std::string_view what) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t length, number<uint64_t>(what));
    QUIRE_ASSIGN_OR_RETURN(const std::span<const std::byte> characters, take(length, what));
    return std::string_view(reinterpret_cast<const char*>(characters.data()), characters.size());
  }

 private:
  Status require(uint64_t count, std::string_view what) const {
    if (count <= remaining()) return {};
    return data_loss("{} at byte {} needs {} bytes, but the file has only {} more", what, position_, count,
                     remaining());
  }
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

}  // namespace quire::checkpoint
