// The protobuf encoding of server/otlp.h: field numbers are those of opentelemetry-proto 1.x.
#include <algorithm>
#include <bit>

#include "base/hex.h"
#include "server/otlp.h"

namespace quire::server {
namespace {

// Types on the wire.
constexpr int kWireVarint = 0;
constexpr int kWireFixed64 = 1;
constexpr int kWireBytes = 2;
constexpr int kWireFixed32 = 5;

// A message as it grows.
class ProtobufMessage {
 public:
  const std::string& bytes() const { return bytes_; }

  void number(int field, uint64_t value) {
    tag(field, kWireVarint);
    varint(value);
  }
  void fixed64(int field, uint64_t value) {
    tag(field, kWireFixed64);
    little_endian(value, 8);
  }
  void fixed32(int field, uint32_t value) {
    tag(field, kWireFixed32);
    little_endian(value, 4);
  }
  void text(int field, std::string_view value) {
    tag(field, kWireBytes);
    varint(value.size());
    bytes_ += value;
  }
  void message(int field, const ProtobufMessage& value) { text(field, value.bytes_); }

 private:
  void tag(int field, int type) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  void little_endian(uint64_t value, int size) {
    for (int i = 0; i < size; ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }

  std::string bytes_;
};

// REQUIRES: pairs of hexadecimal digits.
std::string bytes_of_hex(std::string_view digits) {
  std::string out;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    out += static_cast<char>(hex_digit(digits[i]) << 4 | hex_digit(digits[i + 1]));
  }
  return out;
}

ProtobufMessage key_value(std::string_view key, const SpanValue& value) {
  ProtobufMessage any;
  if (const auto* text = std::get_if<std::string>(&value)) {
    any.text(1, *text);
  } else if (const auto* number = std::get_if<int64_t>(&value)) {
    any.number(3, static_cast<uint64_t>(*number));
  } else {
    any.fixed64(4, std::bit_cast<uint64_t>(std::get<double>(value)));
  }
  ProtobufMessage out;
  out.text(1, key);
  out.message(2, any);
  return out;
}

ProtobufMessage span_message(const Span& span) {
  ProtobufMessage out;
  out.text(1, bytes_of_hex(span.trace_id));
  out.text(2, bytes_of_hex(span.span_id));
  if (!span.trace_state.empty()) out.text(3, span.trace_state);
  if (!span.parent_id.empty()) out.text(4, bytes_of_hex(span.parent_id));
  out.text(5, kSpanName);
  out.number(6, kSpanKindServer);
  out.fixed64(7, static_cast<uint64_t>(span.start));
  out.fixed64(8, static_cast<uint64_t>(span.end));
  for (const auto& [key, value] : span.attributes) out.message(9, key_value(key, value));
  ProtobufMessage status;
  if (span.failed) {
    if (!span.error.empty()) status.text(2, span.error);
    status.number(3, kSpanStatusError);
  }
  out.message(15, status);
  out.fixed32(16, span_flags(span));
  return out;
}

// The fields of a message, one after the other.
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view bytes) : rest_(bytes) {}

  // False: that was all, or it cannot be read.
  bool next() {
    uint64_t tag = 0;
    if (rest_.empty() || !varint(tag)) return false;
    field = tag >> 3;
    switch (tag & 7) {
      case kWireVarint:
        return varint(number);
      case kWireBytes: {
        uint64_t size = 0;
        return varint(size) && take(size, text);
      }
      case kWireFixed64:
        return take(8, text);
      case kWireFixed32:
        return take(4, text);
      default:
        return false;
    }
  }

  uint64_t field = 0;
  uint64_t number = 0;    // of a varint
  std::string_view text;  // of the others

 private:
  bool take(uint64_t size, std::string_view& out) {
    if (size > rest_.size()) return false;
    out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  bool varint(uint64_t& out) {
    out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      std::string_view byte;
      if (!take(1, byte)) return false;
      out |= (static_cast<uint64_t>(static_cast<uint8_t>(byte[0])) & 0x7f) << shift;
      if ((byte[0] & 0x80) == 0) return true;
    }
    return false;
  }

  std::string_view rest_;
};

}  // namespace

std::string encode_spans_as_protobuf(const SpanSource& source, std::span<const Span> spans) {
  ProtobufMessage resource;
  resource.message(1, key_value("service.name", source.service_name));
  resource.message(1, key_value("service.version", source.version));
  for (const auto& [key, value] : source.attributes) resource.message(1, key_value(key, value));
  ProtobufMessage scope;
  scope.text(1, kSpanScope);
  scope.text(2, source.version);
  ProtobufMessage scope_spans;
  scope_spans.message(1, scope);
  for (const Span& span : spans) scope_spans.message(2, span_message(span));
  ProtobufMessage resource_spans;
  resource_spans.message(1, resource);
  resource_spans.message(2, scope_spans);
  ProtobufMessage request;
  request.message(1, resource_spans);
  return request.bytes();
}

PartialSuccess parse_partial_success_of_protobuf(std::string_view body) {
  PartialSuccess out;
  for (ProtobufReader response(body); response.next();) {
    if (response.field != 1) continue;
    for (ProtobufReader partial(response.text); partial.next();) {
      if (partial.field == 1) out.rejected = std::max<int64_t>(static_cast<int64_t>(partial.number), 0);
      if (partial.field == 2) out.message = partial.text;
    }
  }
  return out;
}

}  // namespace quire::server
