#include "text/jinja_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <utf8proc.h>

namespace quire::text::jinja {

void Text::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_trusted_ = trusted;
    flips_.clear();
  } else if (last_trusted() != trusted) {
    flips_.push_back(bytes_.size());
  }
  bytes_.append(bytes);
}

void Text::append(const Text& other, size_t begin, size_t end) {
  while (begin < end) {
    const size_t stop = std::min(end, other.run_end(begin));
    append(other.view().substr(begin, stop - begin), other.trusted_at(begin));
    begin = stop;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text result;
  result.append(*this, begin, end);
  return result;
}

bool Text::trusted_at(size_t offset) const {
  const auto flips = std::upper_bound(flips_.begin(), flips_.end(), offset) - flips_.begin();
  return first_trusted_ ^ ((flips & 1) != 0);
}

size_t Text::run_end(size_t offset) const {
  const auto next = std::upper_bound(flips_.begin(), flips_.end(), offset);
  return next == flips_.end() ? bytes_.size() : *next;
}

char32_t next_code_point(std::string_view text, size_t& offset) {
  const auto lead = static_cast<unsigned char>(text[offset]);
  if (lead < 0x80) {
    ++offset;
    return lead;
  }
  utf8proc_int32_t code_point = -1;
  const auto length = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + offset,
                                       static_cast<utf8proc_ssize_t>(text.size() - offset), &code_point);
  if (length <= 0 || code_point < 0) {
    ++offset;
    return 0xFFFD;
  }
  offset += static_cast<size_t>(length);
  return static_cast<char32_t>(code_point);
}

size_t previous_boundary(std::string_view text, size_t offset) {
  size_t begin = offset - 1;
  while (begin > 0 && offset - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  size_t end = begin;
  next_code_point(text, end);
  return end == offset ? begin : offset - 1;
}

void append_utf8(std::string& out, char32_t code_point) {
  utf8proc_uint8_t bytes[4];
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) code_point = 0xFFFD;
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

std::string to_well_formed(std::string_view text) {
  std::string result;
  for (size_t offset = 0; offset < text.size();) append_utf8(result, next_code_point(text, offset));
  return result;
}

std::string_view clip(std::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  while (most_bytes > 0 && (static_cast<unsigned char>(text[most_bytes]) & 0xC0) == 0x80) --most_bytes;
  return text.substr(0, most_bytes);
}

std::string_view trim_spaces_left(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t next = begin;
    if (!is_space(next_code_point(text, next))) break;
    begin = next;
  }
  return text.substr(begin);
}

std::string_view trim_spaces_right(std::string_view text) {
  while (!text.empty()) {
    const size_t begin = previous_boundary(text, text.size());
    size_t end = begin;
    if (!is_space(next_code_point(text, end))) break;
    text = text.substr(0, begin);
  }
  return text;
}

size_t count_code_points(std::string_view text) {
  // Strings are well formed inside the engine, so a code point is a byte that continues nothing.
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }));
}

size_t code_point_offset(std::string_view text, size_t index) {
  size_t offset = 0;
  while (offset < text.size()) {
    if ((static_cast<unsigned char>(text[offset]) & 0xC0) != 0x80 && index-- == 0) return offset;
    ++offset;
  }
  return text.size();
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

namespace {

utf8proc_category_t category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

bool is_alphabetic(char32_t c) {
  const auto kind = category(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal_digit(char32_t c) {
  // isdigit also takes the superscripts, which are digits but not decimal.
  return category(c) == UTF8PROC_CATEGORY_ND || c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 ||
         (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}
bool is_numeric(char32_t c) {
  const auto kind = category(c);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}
bool is_lower(char32_t c) {
  return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0;
}
bool is_upper(char32_t c) {
  return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0;
}

bool is_printable(char32_t c) {
  if (c == ' ') return true;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void append_upper(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "SS";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}
void append_lower(std::string& out, char32_t c) {
  append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}
void append_title(std::string& out, char32_t c) {
  if (c == 0xDF) {
    out += "Ss";
    return;
  }
  append_utf8(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

namespace {

constexpr size_t kPlainSearch = 16;  // at most this factor over linear time

std::vector<uint32_t> failure_table(std::string_view needle) {
  std::vector<uint32_t> failure(needle.size(), 0);
  for (size_t i = 1, matched = 0; i < needle.size(); ++i) {
    while (matched > 0 && needle[i] != needle[matched]) matched = failure[matched - 1];
    if (needle[i] == needle[matched]) ++matched;
    failure[i] = static_cast<uint32_t>(matched);
  }
  return failure;
}

// Where the first occurrence ends.
template <typename Iterator>
std::optional<Iterator> search(Iterator begin, Iterator end, std::string_view needle,
                               const std::vector<uint32_t>& failure) {
  size_t matched = 0;
  for (Iterator at = begin; at != end; ++at) {
    while (matched > 0 && *at != needle[matched]) matched = failure[matched - 1];
    if (*at == needle[matched]) ++matched;
    if (matched == needle.size()) return at + 1;
  }
  return std::nullopt;
}

}  // namespace

Finder::Finder(std::string_view needle) : needle_(needle) {
  if (needle.size() > kPlainSearch) failure_ = failure_table(needle);
}

size_t Finder::find(std::string_view haystack, size_t from) const {
  if (failure_.empty()) return haystack.find(needle_, from);
  if (from > haystack.size()) return std::string_view::npos;
  const auto found = search(haystack.begin() + static_cast<std::ptrdiff_t>(from), haystack.end(), needle_, failure_);
  return found ? static_cast<size_t>(*found - haystack.begin()) - needle_.size() : std::string_view::npos;
}

ReverseFinder::ReverseFinder(std::string_view needle) : needle_(needle) {
  if (needle.size() <= kPlainSearch) return;
  reversed_.assign(needle.rbegin(), needle.rend());
  failure_ = failure_table(reversed_);
}

size_t ReverseFinder::find(std::string_view haystack) const {
  if (failure_.empty()) return haystack.rfind(needle_);
  const auto found = search(haystack.rbegin(), haystack.rend(), reversed_, failure_);
  return found ? static_cast<size_t>(haystack.rend() - *found) : std::string_view::npos;
}

std::string python_repr(std::string_view text) {
  const bool double_quoted = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quoted ? '"' : '\'';
  std::string result(1, quote);
  for (size_t offset = 0; offset < text.size();) {
    const size_t begin = offset;
    const char32_t c = next_code_point(text, offset);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if (is_printable(c)) {
      result.append(text.substr(begin, offset - begin));
    } else if (c < 0x100) {
      result += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    } else if (c < 0x10000) {
      result += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      result += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    }
  }
  return result + quote;
}

std::string json_quote(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        result += "\\\"";
        break;
      case '\\':
        result += "\\\\";
        break;
      case '\n':
        result += "\\n";
        break;
      case '\r':
        result += "\\r";
        break;
      case '\t':
        result += "\\t";
        break;
      case '\b':
        result += "\\b";
        break;
      case '\f':
        result += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          result += fmt::format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
          result += c;
        }
    }
  }
  return result + '"';
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto written = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string_view scientific(buffer, static_cast<size_t>(written.ptr - buffer));
  const size_t e = scientific.find('e');
  int exponent = 0;
  std::string_view exponent_text = scientific.substr(e + 1);
  if (exponent_text.front() == '+') exponent_text.remove_prefix(1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  std::string sign;
  std::string digits;
  for (const char c : scientific.substr(0, e)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits += c;
  }
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (count > 1) mantissa += "." + digits.substr(1);
    return fmt::format("{}{}e{}{:02}", sign, mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (exponent + 1 >= count) return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  const auto point = static_cast<size_t>(exponent) + 1;
  return sign + digits.substr(0, point) + "." + digits.substr(point);
}

}  // namespace quire::text::jinja
