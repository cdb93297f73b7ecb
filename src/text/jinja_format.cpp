// Python's two ways of formatting: "%s" % value and "{}".format(value), with their widths and precisions. Attribute and
// item access inside "{0.x}" goes through the sandbox like any other.
#include <algorithm>
#include <cmath>

#include "text/jinja_interpreter.h"
#include "text/utf8.h"

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

bool one_of(char type, std::string_view types) {
  return type != '\0' && types.find(type) != std::string_view::npos;
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
      return fmt::format("{:.{}e}", value, precision);
    case 'E':
      return fmt::format("{:.{}E}", value, precision);
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

constexpr std::string_view kRealTypes = "fFeEgG%";

struct NumberText {
  std::string prefix;  // sign and base
  std::string digits;
};

// nullopt after a failure. REQUIRES: value.is_number().
std::optional<NumberText> number_text(Interpreter& in, const Value& value, const Spec& spec) {
  const bool is_real = value.is(Kind::kReal) || one_of(spec.type, kRealTypes);
  if (spec.type != '\0' && !one_of(spec.type, is_real ? "fFeEgG%n" : "bdoxXnc")) {
    in.fail("Unknown format code '{}' for object of type '{}'", spec.type, is_real ? "float" : "int");
    return std::nullopt;
  }
  NumberText out;
  bool negative = false;
  if (is_real) {
    const double number = value.as_real();
    negative = std::signbit(number) && !std::isnan(number);
    out.digits = real_digits(std::fabs(number), spec);
  } else if (spec.type == 'c') {
    if (value.as_integer() < 0 || value.as_integer() > 0x10FFFF) {
      in.fail("a character's code must be from 0 to 0x10FFFF, found {}", value.as_integer());
      return std::nullopt;
    }
    append_utf8(out.digits, static_cast<char32_t>(value.as_integer()));
  } else {
    negative = value.as_integer() < 0;
    out.digits = integer_digits(magnitude_of(value.as_integer()), spec);
  }
  const bool has_base = one_of(spec.type, "xXob");
  if (spec.grouping != '\0') {
    const size_t whole = std::min(out.digits.find_first_not_of("0123456789abcdefABCDEF"), out.digits.size());
    out.digits = group_digits(out.digits.substr(0, whole), spec.grouping, has_base ? 4 : 3) + out.digits.substr(whole);
  }
  if (negative || spec.sign != '-') out.prefix = negative ? '-' : spec.sign;
  if (spec.alternate && has_base) out.prefix += {'0', spec.type};
  return out;
}

// Filled up to the width. '=' puts the filling behind the prefix.
Text aligned(std::string_view prefix, const Text& body, const Spec& spec, bool fill_trusted) {
  const auto length = static_cast<int64_t>(count_code_points(body.view()) + prefix.size());
  const int64_t padding = std::max<int64_t>(spec.width - length, 0);
  const int64_t before = spec.align == '<' ? 0 : spec.align == '^' ? padding / 2 : padding;
  const auto pad = [&](Text& out, int64_t count) {
    std::string text;
    for (int64_t i = 0; i < count; ++i) text += spec.fill;
    out.append(text, fill_trusted);
  };
  Text result;
  if (spec.align != '=') pad(result, before);
  result.append(prefix, true);
  if (spec.align == '=') pad(result, before);
  result.append(body);
  pad(result, padding - before);
  return result;
}

}  // namespace

Text Interpreter::format_value(const Value& value, const Text& spec_text) {
  if (spec_text.empty()) return str(value);
  Spec spec;
  if (!parse_spec(spec_text.view(), spec)) {
    fail("Invalid format specifier '{}'", clip(spec_text.view(), 60));
    return {};
  }
  if (spec.precision > kMaxPrecision && !value.is_string()) {
    fail("format precision is larger than {}", kMaxPrecision);
    return {};
  }
  if (!reserve(spec.width * static_cast<int64_t>(spec.fill.size()))) return {};
  std::string prefix;
  Text body;
  if (value.is_number()) {
    const auto number = number_text(*this, value, spec);
    if (!number) return {};
    prefix = number->prefix;
    body = Text(number->digits, spec.type != 'c');  // a character may come from a user's number
    if (spec.zero && spec.align == '\0') {
      spec.align = '=';
      spec.fill = "0";
    }
    if (spec.align == '\0') spec.align = '>';
  } else {
    if (!value.is_string()) {
      fail("unsupported format string passed to {}.__format__", type_name(value));
      return {};
    }
    if (spec.type != '\0' && spec.type != 's') {
      fail("Unknown format code '{}' for object of type '{}'", spec.type, type_name(value));
      return {};
    }
    body = value.text();
    if (spec.precision >= 0) body = body.slice(0, code_point_offset(body.view(), static_cast<size_t>(spec.precision)));
    if (spec.zero && spec.align == '\0') spec.fill = "0";
    if (spec.align == '\0' || spec.align == '=') spec.align = '<';
  }
  return aligned(prefix, body, spec, spec_text.fully_trusted());
}

namespace {

// "%s and %(name)5.2f" with its arguments: one value, a tuple, or a mapping.
class PercentFormatter {
 public:
  PercentFormatter(Interpreter& in, const Value& format, const Value& arguments, bool is_single)
      : in_(in), format_(format), view_(format.text().view()), arguments_(arguments), is_single_(is_single) {}

  Value run() {
    const Text& text = format_.text();
    size_t plain = 0;
    for (size_t at = view_.find('%'); at != std::string_view::npos && in_.ok(); at = view_.find('%', plain)) {
      result_.append(text, plain, at);
      at_ = at + 1;
      directive();
      plain = at_;
    }
    if (!in_.ok()) return in_.undefined();
    result_.append(text, plain, text.size());
    const size_t given = is_single_ ? 1 : arguments_.items().size();
    if (!arguments_.is(Kind::kDict) && next_argument_ < given)
      return in_.fail("not all arguments converted during string formatting");
    return in_.string(std::move(result_), format_.string().markup);
  }

 private:
  bool more() const { return at_ < view_.size(); }

  Value next_value() {
    const size_t index = next_argument_++;
    if (is_single_) return index == 0 ? arguments_ : Value::missing();
    return index < arguments_.items().size() ? arguments_.items()[index] : Value::missing();
  }

  // What "(name)" names; missing where there is no name.
  Value named_value() {
    if (!more() || view_[at_] != '(') return Value::missing();
    const size_t close = view_.find(')', at_);
    if (close == std::string_view::npos) return in_.fail("incomplete format key");
    if (!arguments_.is(Kind::kDict)) return in_.fail("format requires a mapping");
    const std::string_view key = view_.substr(at_ + 1, close - at_ - 1);
    const Value* found = arguments_.dict().find(key);
    if (found == nullptr) return in_.fail("key error: {}", python_repr(key));
    at_ = close + 1;
    return *found;
  }

  // Digits, or "*" for an argument.
  int64_t count() {
    if (!more() || view_[at_] != '*') return parse_count(view_, at_);
    ++at_;
    const Value given = next_value();
    if (!given.is_integral()) return in_.fail("* wants int"), 0;
    return std::clamp<int64_t>(given.as_integer(), 0, int64_t{1} << 40);
  }

  // What stands behind a "%".
  void directive() {
    Value value = named_value();
    Spec spec;
    bool left = false;
    for (; more() && one_of(view_[at_], "#0- +"); ++at_) {
      if (view_[at_] == '-') left = true;
      if (view_[at_] == '0') spec.zero = true;
      if (view_[at_] == '#') spec.alternate = true;
      if (view_[at_] == '+' || (view_[at_] == ' ' && spec.sign != '+')) spec.sign = view_[at_];
    }
    const int64_t width = count();
    int64_t precision = -1;
    if (more() && view_[at_] == '.') {
      ++at_;
      precision = count();
    }
    while (more() && one_of(view_[at_], "lhL")) ++at_;
    if (!in_.ok()) return;
    if (!more()) {
      in_.fail("incomplete format");
      return;
    }
    const char type = view_[at_++];
    if (type == '%') return result_.append("%", format_.text().trusted_at(at_ - 1));
    if (value.is_missing()) value = next_value();
    if (value.is_missing()) {
      in_.fail("not enough arguments for format string");
      return;
    }
    if (!in_.grow(result_.size(), static_cast<size_t>(width)) || !convert(type, value)) return;

    std::string spec_text = left ? "<" : value.is_string() ? ">" : "";
    if (!value.is_string()) {
      if (spec.sign != '-') spec_text += spec.sign;
      if (spec.alternate) spec_text += '#';
      if (spec.zero && !left) spec_text += '0';
    }
    if (width > 0) spec_text += std::to_string(width);
    if (precision >= 0 && !one_of(type, kWholeTypes)) spec_text += "." + std::to_string(precision);
    spec_text += value.is_string() ? 's' : one_of(type, "diu") ? 'd' : type;
    result_.append(in_.format_value(value, Text(std::move(spec_text), true)));
  }

  // The value as the type wants it: text or a number. False after a failure.
  bool convert(char type, Value& value) {
    if (one_of(type, "sra")) {
      Text body = type == 's' ? in_.str(value) : Text(in_.repr(value), false);
      if (type == 's' && format_.string().markup && !(value.is_string() && value.string().markup))
        body = in_.escape(body);
      if (in_.ok()) value = in_.string(std::move(body));
    } else if (type == 'c') {
      if (value.is_integral()) value = in_.string(in_.format_value(value, Text("c", true)));
      if (in_.ok() && (!value.is_string() || value.string().length != 1)) in_.fail("%c requires int or char");
    } else if (!one_of(type, "diuxXofFeEgG")) {
      const size_t length = next_utf8_sequence(view_, at_ - 1).length;
      in_.fail("unsupported format character {:?} at index {}", view_.substr(at_ - 1, length), at_ - 1);
    } else if (!value.is_number()) {
      in_.fail("%{} format: a number is required, not {}", type, type_name(value));
    } else if (one_of(type, kWholeTypes) && value.is(Kind::kReal)) {
      if (one_of(type, "xXo")) {
        in_.fail("%{} format: an integer is required, not float", type);
      } else if (!(std::fabs(value.as_real()) < 9e18)) {
        in_.fail("integer overflow in %{}", type);
      } else {
        value = Value::integer(static_cast<int64_t>(value.as_real()));
      }
    }
    return in_.ok();
  }

  static constexpr std::string_view kWholeTypes = "diuxXo";

  Interpreter& in_;
  const Value& format_;
  const std::string_view view_;
  const Value& arguments_;
  const bool is_single_;
  size_t at_ = 0;
  size_t next_argument_ = 0;
  Text result_;
};

// "{} and {name[key].attribute!r:>{width}}" with its arguments.
class BracesFormatter {
 public:
  BracesFormatter(Interpreter& in, const Value& format, const Arguments& arguments)
      : in_(in), format_(format), arguments_(arguments) {}

  Value run() {
    const Text& text = format_.text();
    const std::string_view view = text.view();
    for (size_t at = 0; at < view.size() && in_.ok();) {
      const size_t brace = std::min(view.find_first_of("{}", at), view.size());
      result_.append(text, at, brace);
      if (brace == view.size()) break;
      if (brace + 1 < view.size() && view[brace + 1] == view[brace]) {
        result_.append(text, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (view[brace] == '}') return in_.fail("Single '}}' encountered in format string");
      int depth = 1;
      size_t end = brace + 1;
      for (; end < view.size() && depth > 0; ++end) depth += view[end] == '{' ? 1 : view[end] == '}' ? -1 : 0;
      if (depth > 0) return in_.fail("expected '}}' before end of string");
      replace_field(text.slice(brace + 1, end - 1));
      at = end;
    }
    return in_.ok() ? in_.string(std::move(result_), format_.string().markup) : in_.undefined();
  }

 private:
  // `field`: what stands between the braces.
  void replace_field(const Text& field) {
    const size_t colon = std::min(field.view().find(':'), field.size());
    std::string_view name = field.view().substr(0, colon);
    char conversion = '\0';
    if (const size_t mark = name.find('!'); mark != std::string_view::npos) {
      if (mark + 2 != name.size()) {
        in_.fail("expected ':' after conversion specifier");
        return;
      }
      conversion = name[mark + 1];
      name = name.substr(0, mark);
    }
    Value value = field_value(name);
    if (conversion == 'r' || conversion == 'a') value = in_.string(in_.repr(value), false);
    if (conversion == 's') value = in_.string(in_.str(value));
    const Text spec = specification(field.slice(std::min(colon + 1, field.size()), field.size()));
    if (!in_.ok()) return;
    const Text formatted = in_.format_value(value, spec);
    if (in_.grow(result_.size(), formatted.size())) result_.append(formatted);
  }

  // One level of "{}" inside the specification.
  Text specification(const Text& written) {
    Text spec;
    size_t plain = 0;
    const std::string_view view = written.view();
    for (size_t open = view.find('{'); open != std::string_view::npos && in_.ok(); open = view.find('{', plain)) {
      const size_t close = view.find('}', open);
      if (close == std::string_view::npos) {
        in_.fail("expected '}}' before end of string");
        break;
      }
      spec.append(written, plain, open);
      spec.append(in_.str(field_value(view.substr(open + 1, close - open - 1))));
      plain = close + 1;
    }
    spec.append(written, plain, written.size());
    return spec;
  }

  // The value of "0", "name" or "" (the next), before its attributes.
  Value argument(std::string_view name) {
    size_t index = automatic_;
    if (name.empty()) ++automatic_;
    if (name.find_first_not_of("0123456789") != std::string_view::npos) {
      const auto found = std::find_if(arguments_.keyword.begin(), arguments_.keyword.end(),
                                      [&](const KeywordArgument& named) { return named.name == name; });
      return found != arguments_.keyword.end() ? found->value : in_.fail("key error: {}", python_repr(name));
    }
    size_t parsed = 0;
    if (!name.empty()) index = static_cast<size_t>(parse_count(name, parsed));
    if (index < arguments_.positional.size()) return arguments_.positional[index];
    return in_.fail("Replacement index {} out of range for positional args tuple", index);
  }

  // The value of "0.name[key]".
  Value field_value(std::string_view field) {
    size_t at = std::min(field.find_first_of(".["), field.size());
    Value value = argument(field.substr(0, at));
    while (at < field.size() && in_.ok()) {
      if (field[at] == '.') {
        const size_t end = std::min(field.find_first_of(".[", at + 1), field.size());
        value = in_.attribute(value, in_.string(field.substr(at + 1, end - at - 1), true));
        at = end;
      } else if (field[at] == '[') {
        const size_t end = field.find(']', at);
        if (end == std::string_view::npos) return in_.fail("Missing ']' in format string");
        const std::string_view key = field.substr(at + 1, end - at - 1);
        size_t parsed = 0;
        const bool digits = !key.empty() && key.find_first_not_of("0123456789") == std::string_view::npos;
        value = in_.item(value, digits ? Value::integer(parse_count(key, parsed)) : in_.string(key, true));
        at = end + 1;
      } else {
        return in_.fail("Only '.' or '[' may follow ']' in format field specifier");
      }
    }
    return value;
  }

  Interpreter& in_;
  const Value& format_;
  const Arguments& arguments_;
  size_t automatic_ = 0;
  Text result_;
};

}  // namespace

Value Interpreter::format_percent(const Value& format, const Value& arguments, bool is_single) {
  return PercentFormatter(*this, format, arguments, is_single).run();
}

Value Interpreter::format_braces(const Value& format, const Arguments& arguments) {
  return BracesFormatter(*this, format, arguments).run();
}

}  // namespace quire::text::jinja
