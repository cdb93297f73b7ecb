// Python's two ways of formatting: "%s" % value and "{}".format(value), with their widths and precisions. Attribute and
// item access inside "{0.x}" goes through the sandbox like any other.
#include <algorithm>
#include <cmath>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {
namespace {

constexpr int64_t kMaxPrecision = 300;

struct Spec {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  int64_t width = 0;
  char grouping = '\0';
  int64_t precision = -1;
  char type = '\0';
};

// Digits at `at`, capped: what is beyond the cap is beyond every limit.
int64_t parse_count(std::string_view text, size_t& at) {
  int64_t value = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    value = std::min<int64_t>(value * 10 + (text[at] - '0'), int64_t{1} << 40);
  }
  return value;
}

bool parse_spec(std::string_view text, Spec& spec) {
  size_t at = 0;
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  if (!text.empty()) {
    size_t after_fill = 0;
    next_code_point(text, after_fill);
    if (after_fill < text.size() && is_align(text[after_fill])) {
      spec.fill = text.substr(0, after_fill);
      spec.align = text[after_fill];
      at = after_fill + 1;
    } else if (is_align(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  const auto take = [&](std::string_view any) {
    return at < text.size() && any.find(text[at]) != std::string_view::npos;
  };
  if (take("+- ")) spec.sign = text[at++];
  if (take("#")) spec.alternate = (++at, true);
  if (take("0")) {
    spec.zero = true;
    ++at;
  }
  spec.width = parse_count(text, at);
  if (take(",_")) spec.grouping = text[at++];
  if (take(".")) {
    ++at;
    if (!take("0123456789")) return false;
    spec.precision = parse_count(text, at);
  }
  if (at < text.size()) spec.type = text[at++];
  return at == text.size();
}

std::string group_digits(const std::string& digits, char separator, size_t every) {
  std::string result;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) result += separator;
    result += digits[i];
  }
  return result;
}

std::string fix_exponent(std::string text) {
  // C prints at least two exponent digits, as Python does.
  return text;
}

// |value| under a float presentation type.
std::string real_digits(double value, const Spec& spec) {
  if (std::isnan(value)) return std::isupper(static_cast<unsigned char>(spec.type)) != 0 ? "NAN" : "nan";
  if (std::isinf(value)) return std::isupper(static_cast<unsigned char>(spec.type)) != 0 ? "INF" : "inf";
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  switch (spec.type) {
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", value, precision);
    case 'e':
      return fix_exponent(fmt::format("{:.{}e}", value, precision));
    case 'E':
      return fix_exponent(fmt::format("{:.{}E}", value, precision));
    case 'g':
      return fmt::format("{:.{}g}", value, std::max(precision, 1));
    case 'G':
      return fmt::format("{:.{}G}", value, std::max(precision, 1));
    case '%':
      return fmt::format("{:.{}f}%", value * 100, precision);
    default:
      break;
  }
  if (spec.precision < 0) return python_float(value);
  std::string text = fmt::format("{:.{}g}", value, std::max(precision, 1));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string integer_digits(uint64_t magnitude, const Spec& spec) {
  switch (spec.type) {
    case 'x':
      return fmt::format("{:x}", magnitude);
    case 'X':
      return fmt::format("{:X}", magnitude);
    case 'o':
      return fmt::format("{:o}", magnitude);
    case 'b':
      return fmt::format("{:b}", magnitude);
    default:
      return fmt::format("{}", magnitude);
  }
}

uint64_t magnitude_of(int64_t value) {
  return value < 0 ? uint64_t{0} - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

}  // namespace

Text Interpreter::format_value(const Value& value, std::string_view spec_text) {
  if (spec_text.empty()) return str(value);
  Spec spec;
  if (!parse_spec(spec_text, spec)) {
    fail("Invalid format specifier '{}'", spec_text.substr(0, 60));
    return {};
  }
  if (spec.precision > kMaxPrecision && !value.is_string()) {
    fail("format precision is larger than {}", kMaxPrecision);
    return {};
  }
  if (!reserve(spec.width * static_cast<int64_t>(spec.fill.size()))) return {};
  Text body;
  std::string prefix;
  const bool real_type = std::string_view("fFeEgG%").find(spec.type) != std::string_view::npos && spec.type != '\0';
  const bool numeric =
      value.is(Kind::kInteger) || value.is(Kind::kReal) || (value.is(Kind::kBool) && spec.type != '\0');
  if (numeric) {
    std::string digits;
    bool negative = false;
    if (value.is(Kind::kReal) || real_type) {
      const double number = value.as_real();
      if (spec.type != '\0' && !real_type && spec.type != 'n') {
        fail("Unknown format code '{}' for object of type 'float'", spec.type);
        return {};
      }
      negative = std::signbit(number) && !std::isnan(number);
      digits = real_digits(std::fabs(number), spec);
    } else {
      if (spec.type != '\0' && std::string_view("bdoxXnc").find(spec.type) == std::string_view::npos) {
        fail("Unknown format code '{}' for object of type 'int'", spec.type);
        return {};
      }
      negative = value.as_integer() < 0;
      if (spec.type == 'c') {
        append_utf8(digits, static_cast<char32_t>(std::clamp<int64_t>(value.as_integer(), 0, 0x110000)));
      } else {
        digits = integer_digits(magnitude_of(value.as_integer()), spec);
      }
      if (spec.alternate && std::string_view("xXob").find(spec.type) != std::string_view::npos) {
        prefix = std::string("0") + spec.type;
      }
    }
    if (spec.grouping != '\0') {
      const size_t whole = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
      const bool decimal = std::string_view("xXob").find(spec.type) == std::string_view::npos || spec.type == '\0';
      digits = group_digits(digits.substr(0, whole), spec.grouping, decimal ? 3 : 4) + digits.substr(whole);
    }
    prefix = (negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign)) + prefix;
    if (spec.zero && spec.align == '\0') {
      spec.align = '=';
      spec.fill = "0";
    }
    if (spec.align == '\0') spec.align = '>';
    body = Text(digits, true);
  } else {
    if (value.is_none() || value.is(Kind::kBool) || nesting_depth(value) > 0 ||
        !(value.is_string() || value.is(Kind::kBool))) {
      if (!value.is(Kind::kBool)) {
        fail("unsupported format string passed to {}.__format__", type_name(value));
        return {};
      }
    }
    if (spec.type != '\0' && spec.type != 's') {
      fail("Unknown format code '{}' for object of type '{}'", spec.type, type_name(value));
      return {};
    }
    body = str(value);
    if (spec.precision >= 0) body = body.slice(0, code_point_offset(body.view(), static_cast<size_t>(spec.precision)));
    if (spec.zero && spec.align == '\0') spec.fill = "0";
    if (spec.align == '\0' || spec.align == '=') spec.align = '<';
  }
  const auto length = static_cast<int64_t>(count_code_points(body.view()) + prefix.size());
  const int64_t padding = std::max<int64_t>(spec.width - length, 0);
  const int64_t before = spec.align == '<' ? 0 : spec.align == '^' ? padding / 2 : padding;
  const auto pad = [&](Text& out, int64_t count) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += spec.fill;
    out.append(text, true);
  };
  Text result;
  if (spec.align != '=') pad(result, before);
  result.append(prefix, true);
  if (spec.align == '=') pad(result, before);
  result.append(body);
  pad(result, padding - before);
  return result;
}

Value Interpreter::format_percent(const Value& format, const Value& arguments, bool is_single) {
  const Text& text = format.text();
  const std::string_view view = text.view();
  Text result;
  size_t next_argument = 0;
  bool used_mapping = false;
  const auto next_value = [&]() -> Value {
    const size_t index = next_argument++;
    if (is_single) return index == 0 ? arguments : Value::missing();
    return index < arguments.items().size() ? arguments.items()[index] : Value::missing();
  };
  size_t plain = 0;
  for (size_t at = view.find('%'); at != std::string_view::npos && ok(); at = view.find('%', at)) {
    result.append(text, plain, at);
    ++at;
    Value value = Value::missing();
    if (at < view.size() && view[at] == '(') {
      const size_t close = view.find(')', at);
      if (close == std::string_view::npos) return fail("incomplete format key");
      if (!arguments.is(Kind::kDict)) return fail("format requires a mapping");
      const Value* found = arguments.dict().find(view.substr(at + 1, close - at - 1));
      if (found == nullptr) return fail("key error: {}", python_repr(view.substr(at + 1, close - at - 1)));
      value = *found;
      used_mapping = true;
      at = close + 1;
    }
    Spec spec;
    bool left = false;
    for (; at < view.size() && std::string_view("#0- +").find(view[at]) != std::string_view::npos; ++at) {
      if (view[at] == '-') left = true;
      if (view[at] == '0') spec.zero = true;
      if (view[at] == '#') spec.alternate = true;
      if (view[at] == '+' || (view[at] == ' ' && spec.sign != '+')) spec.sign = view[at];
    }
    const auto count = [&]() -> int64_t {
      if (at >= view.size() || view[at] != '*') return parse_count(view, at);
      ++at;
      const Value given = next_value();
      if (!given.is_integral()) fail("* wants int");
      return given.is_integral() ? std::clamp<int64_t>(given.as_integer(), 0, int64_t{1} << 40) : 0;
    };
    const int64_t width = count();
    int64_t precision = -1;
    if (at < view.size() && view[at] == '.') {
      ++at;
      precision = count();
    }
    while (at < view.size() && (view[at] == 'l' || view[at] == 'h' || view[at] == 'L')) ++at;
    if (at >= view.size()) return fail("incomplete format");
    const char type = view[at++];
    plain = at;
    if (type == '%') {
      result.append("%", text.trusted_at(at - 1));
      continue;
    }
    if (value.is_missing()) value = next_value();
    if (value.is_missing()) return fail("not enough arguments for format string");
    if (!reserve(static_cast<int64_t>(result.size()) + width)) return undefined();
    std::string spec_text = left ? "<" : type == 's' || type == 'r' || type == 'a' || type == 'c' ? ">" : "";
    if (type == 's' || type == 'r' || type == 'a') {
      Text body = type == 's' ? str(value) : Text(repr(value), false);
      if (type == 's' && format.string().markup && !(value.is_string() && value.string().markup)) body = escape(body);
      if (!ok()) return undefined();
      value = string(std::move(body));
    } else if (type == 'c') {
      if (value.is_integral()) {
        std::string one;
        append_utf8(one, static_cast<char32_t>(std::clamp<int64_t>(value.as_integer(), 0, 0x110000)));
        value = string(one, true);
      }
      if (!value.is_string() || value.string().length != 1) return fail("%c requires int or char");
    } else if (std::string_view("diuxXofFeEgG").find(type) != std::string_view::npos) {
      if (!value.is_number()) return fail("%{} format: a number is required, not {}", type, type_name(value));
      const bool whole = std::string_view("diuxXo").find(type) != std::string_view::npos;
      if (whole && value.is(Kind::kReal)) {
        if (type == 'x' || type == 'X' || type == 'o')
          return fail("%{} format: an integer is required, not float", type);
        if (!(std::fabs(value.as_real()) < 9e18)) return fail("integer overflow in %{}", type);
        value = Value::integer(static_cast<int64_t>(value.as_real()));
      }
      if (spec.sign != '-') spec_text += spec.sign;
      if (spec.alternate) spec_text += '#';
      if (spec.zero && !left) spec_text += '0';
    } else {
      return fail("unsupported format character '{}' at index {}", type, at - 1);
    }
    if (width > 0) spec_text += std::to_string(width);
    const bool integer_type = std::string_view("diuxXo").find(type) != std::string_view::npos;
    if (precision >= 0 && !integer_type) spec_text += "." + std::to_string(precision);
    if (type == 'i' || type == 'u' || type == 'd') {
      spec_text += 'd';
    } else if (std::string_view("xXofFeEgG").find(type) != std::string_view::npos) {
      spec_text += type;
    } else {
      spec_text += 's';
    }
    result.append(format_value(value, spec_text));
  }
  if (!ok()) return undefined();
  result.append(text, plain, text.size());
  const bool may_be_left = arguments.is(Kind::kDict) || used_mapping;
  const size_t given = is_single ? 1 : arguments.items().size();
  if (!may_be_left && next_argument < given) return fail("not all arguments converted during string formatting");
  return string(std::move(result), format.string().markup);
}

Value Interpreter::format_braces(const Value& format, const Arguments& arguments) {
  const Text& text = format.text();
  const std::string_view view = text.view();
  Text result;
  size_t automatic = 0;
  // The value of "0.name[key]!r".
  const auto field_value = [&](std::string_view field) -> Value {
    size_t at = std::min(field.find_first_of(".["), field.size());
    const std::string_view first = field.substr(0, at);
    Value value;
    size_t index = automatic;
    if (first.empty()) ++automatic;
    const bool numbered = first.empty() || first.find_first_not_of("0123456789") == std::string_view::npos;
    if (numbered) {
      size_t parsed = 0;
      if (!first.empty()) index = static_cast<size_t>(parse_count(first, parsed));
      if (index >= arguments.positional.size())
        return fail("Replacement index {} out of range for positional args tuple", index);
      value = arguments.positional[index];
    } else {
      const auto found = std::find_if(arguments.keyword.begin(), arguments.keyword.end(),
                                      [&](const auto& named) { return named.first == first; });
      if (found == arguments.keyword.end()) return fail("key error: {}", python_repr(first));
      value = found->second;
    }
    while (at < field.size() && ok()) {
      if (field[at] == '.') {
        const size_t end = std::min(field.find_first_of(".[", at + 1), field.size());
        value = attribute(value, string(field.substr(at + 1, end - at - 1), true));
        at = end;
      } else if (field[at] == '[') {
        const size_t end = field.find(']', at);
        if (end == std::string_view::npos) return fail("Missing ']' in format string");
        const std::string_view key = field.substr(at + 1, end - at - 1);
        size_t parsed = 0;
        const bool digits = !key.empty() && key.find_first_not_of("0123456789") == std::string_view::npos;
        value = item(value, digits ? Value::integer(parse_count(key, parsed)) : string(key, true));
        at = end + 1;
      } else {
        return fail("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  };
  for (size_t at = 0; at < view.size() && ok();) {
    const size_t brace = std::min(view.find_first_of("{}", at), view.size());
    result.append(text, at, brace);
    if (brace == view.size()) break;
    if (brace + 1 < view.size() && view[brace + 1] == view[brace]) {
      result.append(text, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    if (view[brace] == '}') return fail("Single '}}' encountered in format string");
    int depth = 1;
    size_t end = brace + 1;
    for (; end < view.size() && depth > 0; ++end) depth += view[end] == '{' ? 1 : view[end] == '}' ? -1 : 0;
    if (depth > 0) return fail("expected '}}' before end of string");
    std::string_view field = view.substr(brace + 1, end - brace - 2);
    std::string spec;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (const size_t mark = field.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != field.size()) return fail("expected ':' after conversion specifier");
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    Value value = field_value(field);
    if (conversion == 'r' || conversion == 'a') value = string(repr(value), false);
    if (conversion == 's') value = string(str(value));
    // One level of "{}" inside the specification.
    for (size_t open = spec.find('{'); open != std::string::npos && ok(); open = spec.find('{', open)) {
      const size_t close = spec.find('}', open);
      if (close == std::string::npos) return fail("expected '}}' before end of string");
      const Text inner = str(field_value(std::string_view(spec).substr(open + 1, close - open - 1)));
      spec.replace(open, close - open + 1, inner.bytes());
      open += inner.size();
    }
    if (!ok()) return undefined();
    const Text formatted = format_value(value, spec);
    if (!reserve(static_cast<int64_t>(result.size() + formatted.size()))) return undefined();
    result.append(formatted);
    at = end;
  }
  return ok() ? string(std::move(result), format.string().markup) : undefined();
}

}  // namespace quire::text::jinja
