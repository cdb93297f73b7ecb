#include "text/utf8.h"

#include <algorithm>

namespace quire::text {
namespace {

struct LeadByte {
  size_t length = 0;  // of the whole sequence; 0: no sequence begins so
  unsigned char second_low = 0x80, second_high = 0xBF;
};

// Overlong forms, surrogates and values past U+10FFFF are excluded by the range of the second byte.
LeadByte classify(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {};
}

}  // namespace

Utf8Sequence next_utf8_sequence(std::string_view text, size_t position) {
  const LeadByte lead = classify(static_cast<unsigned char>(text[position]));
  if (lead.length == 0) return {1, Utf8State::kIllFormed};
  for (size_t i = 1; i < lead.length; ++i) {
    if (position + i == text.size()) return {i, Utf8State::kIncomplete};
    const auto byte = static_cast<unsigned char>(text[position + i]);
    const unsigned char low = i == 1 ? lead.second_low : 0x80;
    const unsigned char high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {i, Utf8State::kIllFormed};
  }
  return {lead.length, Utf8State::kWellFormed};
}

bool is_valid_utf8(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    if (static_cast<unsigned char>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    const Utf8Sequence sequence = next_utf8_sequence(text, position);
    if (sequence.state != Utf8State::kWellFormed) return false;
    position += sequence.length;
  }
  return true;
}

void append_lossy_utf8(std::string_view text, std::string& out) {
  size_t copied = 0;
  size_t position = 0;
  while (position < text.size()) {
    const Utf8Sequence sequence = next_utf8_sequence(text, position);
    if (sequence.state != Utf8State::kWellFormed) {
      out.append(text.substr(copied, position - copied));
      out.append(kReplacementCharacter);
      copied = position + sequence.length;
    }
    position += sequence.length;
  }
  out.append(text.substr(copied));
}

size_t incomplete_utf8_suffix(std::string_view text) {
  const size_t longest = std::min<size_t>(3, text.size());
  for (size_t length = 1; length <= longest; ++length) {
    const size_t position = text.size() - length;
    if ((static_cast<unsigned char>(text[position]) & 0xC0) == 0x80) continue;
    const Utf8Sequence sequence = next_utf8_sequence(text, position);
    const bool waits = sequence.state == Utf8State::kIncomplete && sequence.length == length;
    return waits ? length : 0;
  }
  return 0;
}

void append_code_point(char32_t value, std::string& out) {
  const auto put = [&out](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | value >> 6);
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3F));
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

}  // namespace quire::text
