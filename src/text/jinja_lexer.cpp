#include "text/jinja_lexer.h"

#include <algorithm>
#include <optional>

#include "base/hex.h"
#include "text/jinja_text.h"

namespace quire::text::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}

size_t skip_space(std::string_view text, size_t offset) {
  return offset < text.size() ? text.size() - trim_spaces_left(text.substr(offset)).size() : offset;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> run() {
    while (position_ < source_.size() && status_.ok()) lex_root();
    if (!status_.ok()) return status_;
    push(TokenKind::kEnd, source_.substr(source_.size()));
    return std::move(tokens_);
  }

 private:
  // Up to and including the next opening tag.
  void lex_root() {
    const size_t begin = position_;
    const size_t tag = find_tag(begin);
    if (tag == std::string_view::npos) {
      push_data(source_.substr(begin));
      position_ = source_.size();
      return;
    }
    const char type = source_[tag + 1];
    size_t after = tag + 2;
    const char sign =
        after < source_.size() && (source_[after] == '-' || source_[after] == '+') ? source_[after] : '\0';
    if (sign != '\0') ++after;
    push_data(strip_before_tag(source_.substr(begin, tag - begin), sign, type != '{'));
    if (type == '%') {
      if (const auto raw_end = match_raw_begin(after)) {
        count_lines_to(tag);
        lex_raw(*raw_end);
        return;
      }
    }
    count_lines_to(tag);
    position_ = after;
    if (type == '#') {
      skip_comment();
    } else {
      push(type == '{' ? TokenKind::kVariableBegin : TokenKind::kBlockBegin, source_.substr(tag, after - tag));
      lex_code(type == '{');
    }
  }

  size_t find_tag(size_t from) const {
    for (size_t at = source_.find('{', from); at != std::string_view::npos; at = source_.find('{', at + 1)) {
      if (at + 1 >= source_.size()) break;
      const char type = source_[at + 1];
      if (type == '{' || type == '%' || type == '#') return at;
    }
    return std::string_view::npos;
  }

  std::string_view strip_before_tag(std::string_view text, char sign, bool lstrip) const {
    if (sign == '-') return trim_spaces_right(text);
    if (sign == '+' || !lstrip) return text;
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return text;
    return skip_space(text, line_begin) == text.size() ? text.substr(0, line_begin) : text;
  }

  // After "{%" and its sign: the offset past "raw %}", if that is what stands here.
  std::optional<size_t> match_raw_begin(size_t at) const {
    at = skip_space(source_, at);
    if (source_.substr(at, 3) != "raw") return std::nullopt;
    at = skip_space(source_, at + 3);
    if (source_.substr(at, 3) == "-%}") return skip_space(source_, at + 3);
    if (source_.substr(at, 2) == "%}") return at + 2;
    return std::nullopt;
  }

  void lex_raw(size_t begin) {
    line_starting_ = source_[begin - 1] == '\n';
    for (size_t at = source_.find("{%", begin); at != std::string_view::npos; at = source_.find("{%", at + 1)) {
      size_t after = at + 2;
      const char sign =
          after < source_.size() && (source_[after] == '-' || source_[after] == '+') ? source_[after] : '\0';
      if (sign != '\0') ++after;
      after = skip_space(source_, after);
      if (source_.substr(after, 6) != "endraw") continue;
      const auto end = match_block_end(skip_space(source_, after + 6));
      if (!end) continue;
      push_data(strip_before_tag(source_.substr(begin, at - begin), sign, true));
      move_to(*end);
      return;
    }
    fail("Missing end of raw directive");
  }

  // The offset past "%}" with its sign and what it swallows.
  std::optional<size_t> match_block_end(size_t at) const {
    if (source_.substr(at, 3) == "+%}") return at + 3;
    if (source_.substr(at, 3) == "-%}") return skip_space(source_, at + 3);
    if (source_.substr(at, 2) != "%}") return std::nullopt;
    at += 2;
    return at < source_.size() && source_[at] == '\n' ? at + 1 : at;
  }

  void skip_comment() {
    const size_t end = source_.find("#}", position_);
    if (end == std::string_view::npos) return fail("Missing end of comment tag");
    const char sign = end > position_ ? source_[end - 1] : '\0';
    size_t after = end + 2;
    if (sign == '-') {
      after = skip_space(source_, after);
    } else if (sign != '+' && after < source_.size() && source_[after] == '\n') {
      ++after;
    }
    move_to(after);
  }

  void lex_code(bool variable) {
    std::vector<char> open;
    while (status_.ok()) {
      if (position_ >= source_.size()) return;  // the parser says what is missing
      if (open.empty()) {
        if (const auto end = variable ? match_variable_end(position_) : match_block_end(position_)) {
          count_lines_to(position_);
          push(variable ? TokenKind::kVariableEnd : TokenKind::kBlockEnd, source_.substr(position_, *end - position_));
          move_to(*end);
          return;
        }
      }
      const size_t next = skip_space(source_, position_);
      if (next > position_) {
        position_ = next;
        continue;
      }
      count_lines_to(position_);
      lex_token(open);
    }
  }

  std::optional<size_t> match_variable_end(size_t at) const {
    if (source_.substr(at, 3) == "-}}") return skip_space(source_, at + 3);
    if (source_.substr(at, 2) == "}}") return at + 2;
    return std::nullopt;
  }

  void lex_token(std::vector<char>& open) {
    const char c = source_[position_];
    if (is_digit(c)) return lex_number();
    if (is_name_start(c)) {
      size_t end = position_ + 1;
      while (end < source_.size() && is_name_part(source_[end])) ++end;
      return take(TokenKind::kName, end);
    }
    if (c == '"' || c == '\'') {
      size_t end = position_ + 1;
      while (end < source_.size() && source_[end] != c) end += source_[end] == '\\' ? 2 : 1;
      if (end >= source_.size()) return fail(fmt::format("unexpected char {:?}", std::string(1, c)));
      return take(TokenKind::kString, end + 1);
    }
    lex_operator(open);
  }

  // Digits with single underscores between them.
  size_t skip_digits(size_t at) const {
    while (at < source_.size() &&
           (is_digit(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void lex_number() {
    const char base = position_ + 2 < source_.size() && source_[position_] == '0'
                          ? static_cast<char>(source_[position_ + 1] | 0x20)
                          : '\0';
    if (base == 'x' || base == 'o' || base == 'b') {
      const auto is_part = [base](char c) {
        if (base == 'x') return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') || c == '_';
        return (c >= '0' && c <= (base == 'o' ? '7' : '1')) || c == '_';
      };
      size_t end = position_ + 2;
      while (end < source_.size() && is_part(source_[end])) ++end;
      if (end > position_ + 2) return take(TokenKind::kInteger, end);
    }
    const size_t whole = skip_digits(position_);
    size_t end = whole;
    const auto digit_at = [this](size_t at) { return at < source_.size() && is_digit(source_[at]); };
    // "a.0.1": digits after a dot are an index, never the beginning of a fraction.
    if (position_ > 0 && source_[position_ - 1] == '.') return take(TokenKind::kInteger, whole);
    if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) end = skip_digits(end + 1);
    if (end < source_.size() && (source_[end] | 0x20) == 'e') {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (digit_at(exponent)) end = skip_digits(exponent);
    }
    take(end > whole ? TokenKind::kReal : TokenKind::kInteger, end);
  }

  void lex_operator(std::vector<char>& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    const std::string_view two = source_.substr(position_, 2);
    if (std::find(std::begin(kTwo), std::end(kTwo), two) != std::end(kTwo)) {
      return take(TokenKind::kOperator, position_ + 2);
    }
    const char c = source_[position_];
    if (std::string_view("+-/*%~[](){}<>=.:|,;").find(c) == std::string_view::npos) {
      return fail(fmt::format("unexpected char {:?}", std::string(1, c)));
    }
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) return fail(fmt::format("unexpected '{}'", c));
      if (open.back() != c) return fail(fmt::format("unexpected '{}', expected '{}'", c, open.back()));
      open.pop_back();
    }
    take(TokenKind::kOperator, position_ + 1);
  }

  void take(TokenKind kind, size_t end) {
    push(kind, source_.substr(position_, end - position_));
    position_ = end;
  }
  void push(TokenKind kind, std::string_view text) { tokens_.push_back({kind, line_, text}); }
  void push_data(std::string_view text) {
    if (!text.empty()) push(TokenKind::kData, text);
  }
  // Lines of everything before `offset`.
  void count_lines_to(size_t offset) {
    line_ += static_cast<int32_t>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                             source_.begin() + static_cast<std::ptrdiff_t>(offset), '\n'));
    counted_ = offset;
  }
  // Past the end of a tag.
  void move_to(size_t offset) {
    line_starting_ = offset > 0 && source_[offset - 1] == '\n';
    position_ = offset;
    count_lines_to(offset);
  }
  void fail(std::string_view message) {
    count_lines_to(std::max(position_, counted_));
    if (status_.ok()) status_ = invalid_argument("chat template, line {}: {}", line_, message);
  }

  std::string_view source_;
  size_t position_ = 0;
  size_t counted_ = 0;
  int32_t line_ = 1;
  bool line_starting_ = true;  // what was matched last ended a line
  std::vector<Token> tokens_;
  Status status_;
};

}  // namespace

std::string normalize_source(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t offset = 0; offset < source.size();) {
    if (source[offset] == '\r') {
      result += '\n';
      offset += source.substr(offset, 2) == "\r\n" ? 2 : 1;
    } else {
      append_utf8(result, next_code_point(source, offset));
    }
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(source).run();
}

Result<std::string> decode_string_literal(std::string_view literal, int line) {
  const std::string_view body = literal.substr(1, literal.size() - 2);
  std::string result;
  const auto hex = [&](size_t at, size_t count) -> std::optional<char32_t> {
    if (at + count > body.size()) return std::nullopt;
    char32_t value = 0;
    for (size_t i = 0; i < count; ++i) {
      const int digit = hex_digit(body[at + i]);
      if (digit < 0) return std::nullopt;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  };
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 >= body.size()) {
      result += body[i];
      continue;
    }
    const char escape = body[++i];
    static constexpr std::string_view kNames = "ntr\\'\"abfv\n";
    static constexpr std::string_view kMeanings = "\n\t\r\\'\"\a\b\f\v";
    if (const size_t known = kNames.find(escape); known != std::string_view::npos) {
      if (known < kMeanings.size()) result += kMeanings[known];  // a newline after \ joins the lines
    } else if (escape >= '0' && escape <= '7') {
      char32_t value = 0;
      size_t count = 0;
      while (count < 3 && i + count < body.size() && body[i + count] >= '0' && body[i + count] <= '7') {
        value = value * 8 + static_cast<char32_t>(body[i + count++] - '0');
      }
      i += count - 1;
      append_utf8(result, value);
    } else if (escape == 'x' || escape == 'u' || escape == 'U') {
      const size_t count = escape == 'x' ? 2 : escape == 'u' ? 4 : 8;
      auto value = hex(i + 1, count);
      if (!value || *value > 0x10FFFF) {
        return invalid_argument("chat template, line {}: bad \\{} escape in a string", line, escape);
      }
      i += count;
      if (*value >= 0xD800 && *value < 0xDC00 && body.substr(i + 1, 2) == "\\u") {
        if (const auto low = hex(i + 3, 4); low && *low >= 0xDC00 && *low < 0xE000) {
          *value = 0x10000 + ((*value - 0xD800) << 10) + (*low - 0xDC00);
          i += 6;
        }
      }
      append_utf8(result, *value);
    } else if (escape == 'N') {
      return invalid_argument("chat template, line {}: \\N{{...}} escapes are not supported", line);
    } else {
      result += '\\';
      result += escape;
    }
  }
  return result;
}

}  // namespace quire::text::jinja
