// Filters over text and single values.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_interpreter.h"
#include "text/jinja_print.h"

namespace quire::text::jinja {
namespace {

using In = Interpreter;
using Self = const Value&;
using Args = const Arguments&;

// soft_str: text stays as it is, anything else becomes its str().
Value soft_string(In& in, const Value& value) {
  return value.is_string() ? value : in.string(in.str(value));
}

// A filter that is the string method of that name.
Value through_method(In& in, std::string_view method, Self s, Args a) {
  const Value text = soft_string(in, s);
  return in.ok() ? find_string_method(method)->function(in, text, a) : in.undefined();
}

Value escape(In& in, Self s, Args) {
  if (s.is_string() && s.string().markup) return s;
  const Text text = in.str(s);
  if (!in.reserve(static_cast<int64_t>(text.size()) * 5)) return in.undefined();
  return in.string(in.escape(text), true);
}

Value force_escape(In& in, Self s, Args) {
  const Text text = in.str(s);
  return in.reserve(static_cast<int64_t>(text.size()) * 5) ? in.string(in.escape(text), true) : in.undefined();
}

Value default_value(In& in, Self s, Args a) {
  Bound bound(in, "default", a, {"default_value", "boolean"});
  if (!bound.ok()) return in.undefined();
  if (!s.is_undefined() && !(bound.truth(1, false) && !in.truth(s))) return s;
  return bound.has(0) ? bound[0] : in.string(Text());
}

Value replace(In& in, Self s, Args a) {
  Bound bound(in, "replace", a, {"old", "new", "count"}, 2);
  if (!bound.ok()) return in.undefined();
  Arguments arguments;
  arguments.positional = {soft_string(in, bound[0]), soft_string(in, bound[1])};
  if (!bound.absent(2)) arguments.positional.push_back(bound[2]);
  const Value text = soft_string(in, s);
  return in.ok() ? find_string_method("replace")->function(in, text, arguments) : in.undefined();
}

Value title(In& in, Self s, Args) {
  const Value text = soft_string(in, s);
  if (!in.ok()) return in.undefined();
  Text result;
  bool inside = false;
  for (size_t at = 0; at < text.text().size();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text.text().view(), at);
    std::string converted;
    (inside ? append_lower : append_upper)(converted, c);
    result.append(converted, text.text().trusted_at(begin));
    inside = !(is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<');
  }
  return in.string(std::move(result));
}

Value trim(In& in, Self s, Args a) {
  Bound bound(in, "trim", a, {"chars"});
  if (!bound.ok()) return in.undefined();
  return through_method(in, "strip", s, bound.absent(0) ? Arguments() : Arguments{{bound[0]}, {}});
}

Value indent(In& in, Self s, Args a) {
  Bound bound(in, "indent", a, {"width", "first", "blank"});
  if (!bound.ok()) return in.undefined();
  if (!s.is_string()) return in.fail("indent() needs a string, not {}", type_name(s));
  Text indention("    ", true);
  if (bound.has(0) && bound[0].is_string()) {
    indention = bound[0].text();
  } else if (bound.has(0)) {
    const int64_t width = bound.integer(0, 4);
    if (!bound.ok() || !in.reserve(width)) return in.undefined();
    indention = Text(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), true);
  }
  const bool blank = bound.truth(2, false);
  const Values lines = in.items(
      find_string_method("splitlines")->function(in, in.arithmetic(Operator::kAdd, s, in.string("\n", true)), {}));
  Text result;
  if (bound.truth(1, false)) result.append(indention);
  for (size_t i = 0; i < lines.size(); ++i) {
    const Text& line = lines[i].text();
    if (!in.grow(result.size(), indention.size() + line.size() + 1)) return in.undefined();
    if (i > 0) result.append("\n", true);
    if (i > 0 && (blank || !line.empty())) result.append(indention);
    result.append(line);
  }
  return in.string(std::move(result), s.string().markup);
}

Value truncate(In& in, Self s, Args a) {
  Bound bound(in, "truncate", a, {"length", "killwords", "end", "leeway"});
  const int64_t length = bound.integer(0, 255);
  const int64_t leeway = bound.absent(3) ? 5 : bound.integer(3, 5);
  if (!bound.ok()) return in.undefined();
  if (!s.is_string()) return in.fail("truncate() needs a string, not {}", type_name(s));
  const Value end = bound.has(2) ? soft_string(in, bound[2]) : in.string("...", true);
  if (!in.ok()) return in.undefined();
  const auto end_length = static_cast<int64_t>(end.string().length);
  if (length < end_length) return in.fail("expected length >= {}, got {}", end_length, length);
  if (leeway < 0) return in.fail("expected leeway >= 0, got {}", leeway);
  const StringObject& text = s.string();
  if (static_cast<int64_t>(text.length) - leeway <= length) return s;
  size_t cut = text.offset_of(static_cast<size_t>(length - end_length));
  if (!bound.truth(1, false)) {
    const size_t space = text.text.view().substr(0, cut).rfind(' ');
    if (space != std::string_view::npos) cut = space;
  }
  Text result = text.text.slice(0, cut);
  result.append(end.text());
  return in.string(std::move(result), text.markup);
}

Value wordcount(In& in, Self s, Args) {
  const Text text = in.str(s);
  int64_t words = 0;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text.view(), at);
    const bool word = c == '_' || is_alphabetic(c) || is_numeric(c);
    if (word && !inside) ++words;
    inside = word;
  }
  return Value::integer(words);
}

Value striptags(In& in, Self s, Args) {
  const Text text = in.str(s);
  const std::string_view view = text.view();
  Text plain;
  size_t copied = 0;
  for (size_t at = view.find('<'); at != std::string_view::npos; at = view.find('<', at)) {
    const bool comment = view.substr(at, 4) == "<!--";
    const size_t end = view.find(comment ? "-->" : ">", at);
    if (end == std::string_view::npos) break;
    plain.append(text, copied, at);
    copied = at = end + (comment ? 3 : 1);
    if (!in.step()) return in.undefined();
  }
  plain.append(text, copied, text.size());
  // Runs of white space become one space.
  const Values words = in.items(find_string_method("split")->function(in, in.string(std::move(plain)), {}));
  Text result;
  for (const Value& word : words) {
    if (!result.empty()) result.append(" ", true);
    result.append(word.text());
  }
  return in.string(std::move(result));
}

void quote_url(std::string& out, std::string_view text, bool query) {
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && !query);
    if (plain) {
      out += c;
    } else if (c == ' ' && query) {
      out += '+';
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
}

Value urlencode(In& in, Self s, Args) {
  std::string out;
  if (s.is_string() || !in.iterable(s)) {
    const Text text = in.str(s);
    if (!in.reserve(static_cast<int64_t>(text.size()) * 3)) return in.undefined();
    quote_url(out, text.view(), false);
    return in.string(out, text.fully_trusted());
  }
  for (const Value& pair : in.items(s.is(Kind::kDict) ? in.dict_view(s, DictViewObject::Part::kItems) : s)) {
    const Values parts = in.items(pair);
    if (!in.ok()) return in.undefined();
    if (parts.size() != 2) return in.fail("urlencode needs pairs");
    const Text name = in.str(parts[0]);
    const Text value = in.str(parts[1]);
    if (!in.grow(out.size(), 3 * (name.size() + value.size()) + 2)) return in.undefined();
    if (!out.empty()) out += '&';
    quote_url(out, name.view(), true);
    out += '=';
    quote_url(out, value.view(), true);
  }
  return in.string(out, false);
}

Value xmlattr(In& in, Self s, Args a) {
  Bound bound(in, "xmlattr", a, {"autospace"});
  if (!s.is(Kind::kDict)) return in.fail("'{}' object has no attribute 'items'", type_name(s));
  Text result;
  for (const auto& [key, value] : s.dict().entries) {
    if (value.is_none() || value.is_undefined()) continue;
    const Text name = in.str(key);
    const Text text = in.str(value);
    if (name.view().find_first_of(" \t\n\r\f\v/>=") != std::string_view::npos)
      return in.fail("Invalid character in attribute name: {}", python_repr(name.view()));
    if (!in.grow(result.size(), 5 * (name.size() + text.size()))) return in.undefined();
    if (!result.empty() || bound.truth(0, true)) result.append(" ", true);
    result.append(in.escape(name));
    result.append("=\"", true);
    result.append(in.escape(text));
    result.append("\"", true);
  }
  return in.string(std::move(result));
}

Value tojson(In& in, Self s, Args a) {
  Bound bound(in, "tojson", a, {"ensure_ascii", "indent", "separators", "sort_keys"});
  if (!bound.ok()) return in.undefined();
  PrintStyle style = json_style(bound.truth(0, false));
  style.sort_keys = bound.truth(3, false);
  if (!bound.absent(1)) {
    const Value& indent = bound[1];
    style.item_separator = ",";
    style.indent = indent.is_string() ? indent.text().bytes() : "";
    if (indent.is_integral() && indent.as_integer() > 0) {
      if (!in.reserve(indent.as_integer())) return in.undefined();
      style.indent->assign(static_cast<size_t>(indent.as_integer()), ' ');
    }
  }
  Values separators;
  if (!bound.absent(2)) {
    separators = in.items(bound[2]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string())
      return in.fail("tojson: separators must be a pair of strings");
    style.item_separator = separators[0].text().view();
    style.key_separator = separators[1].text().view();
  }
  const std::string json = in.print(s, style);
  return in.ok() ? in.string(json, s.is_number() || s.is_none()) : in.undefined();
}

std::optional<double> parse_real(const Value& value) {
  if (value.is_number()) return value.as_real();
  if (!value.is_string()) return std::nullopt;
  const std::string_view written = trim_spaces(value.text().view());
  std::string plain;
  const auto digit_at = [&](size_t i) { return i < written.size() && written[i] >= '0' && written[i] <= '9'; };
  for (size_t i = 0; i < written.size(); ++i) {
    if (written[i] != '_' || i == 0 || !digit_at(i - 1) || !digit_at(i + 1)) plain += written[i];
  }
  std::string_view text = plain;
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  if (text.empty() || text.front() == '+') return std::nullopt;
  double number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ptr != text.data() + text.size() || parsed.ec == std::errc::invalid_argument ||
      text.find('(') != std::string_view::npos)
    return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) number = std::strtod(std::string(text).c_str(), nullptr);
  return number;
}

std::optional<int64_t> parse_integer(In& in, const std::string& source, int64_t base) {
  std::string digits;
  for (const char c : trim_spaces(source)) {
    if (c != '_') digits += c;
  }
  size_t at = 0;
  const bool negative = !digits.empty() && digits[0] == '-';
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) at = 1;
  const std::string_view prefix = std::string_view(digits).substr(at, 2);
  const auto is_prefix = [&](std::string_view lower_case, std::string_view upper_case, int64_t of) {
    return (prefix == lower_case || prefix == upper_case) && (base == of || base == 0);
  };
  if (is_prefix("0x", "0X", 16))
    base = 16, at += 2;
  else if (is_prefix("0o", "0O", 8))
    base = 8, at += 2;
  else if (is_prefix("0b", "0B", 2))
    base = 2, at += 2;
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || at >= digits.size()) return std::nullopt;
  const std::string text = (negative ? "-" : "") + digits.substr(at);
  if (digits[at] == '-') return std::nullopt;
  int64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value, static_cast<int>(base));
  if (parsed.ptr != text.data() + text.size()) return std::nullopt;
  if (parsed.ec == std::errc::result_out_of_range) {
    in.fail("integer overflow: the number does not fit 64 bits");
    return std::nullopt;
  }
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

Value to_integer(In& in, Self s, Args a) {
  Bound bound(in, "int", a, {"default", "base"});
  const int64_t base = bound.integer(1, 10);
  if (!bound.ok()) return in.undefined();
  if (s.is_undefined()) return in.arithmetic(Operator::kAdd, s, s);  // fails as int(undefined) does
  if (s.is_integral()) return Value::integer(s.as_integer());
  if (s.is_string()) {
    if (const auto parsed = parse_integer(in, s.text().bytes(), base)) return Value::integer(*parsed);
    if (!in.ok()) return in.undefined();
  }
  const auto real = parse_real(s);
  if (real && std::isfinite(*real)) {
    if (std::fabs(*real) < 9.2e18) return Value::integer(static_cast<int64_t>(*real));
    return in.fail("integer overflow: the number does not fit 64 bits");
  }
  return bound.has(0) ? bound[0] : Value::integer(0);
}

Value to_real(In& in, Self s, Args a) {
  Bound bound(in, "float", a, {"default"});
  if (!bound.ok()) return in.undefined();
  if (s.is_undefined()) return in.arithmetic(Operator::kAdd, s, s);
  if (const auto real = parse_real(s)) return Value::real(*real);
  return bound.has(0) ? bound[0] : Value::real(0);
}

Value absolute(In& in, Self s, Args) {
  if (s.is_integral()) return s.as_integer() < 0 ? in.negate(s) : Value::integer(s.as_integer());
  if (s.is(Kind::kReal)) return Value::real(std::fabs(s.as_real()));
  if (s.is_undefined()) return in.arithmetic(Operator::kAdd, s, s);
  return in.fail("bad operand type for abs(): '{}'", type_name(s));
}

// round(): to even, decided on the decimal spelling of the exact binary value.
double round_decimal(double value, int64_t precision) {
  if (!std::isfinite(value) || precision > 300) return value;
  if (precision < -308) return 0;
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(value / unit) * unit;
  }
  return std::strtod(fmt::format("{:.{}f}", value, static_cast<int>(precision)).c_str(), nullptr);
}

Value round_number(In& in, Self s, Args a) {
  Bound bound(in, "round", a, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  if (!bound.ok()) return in.undefined();
  const std::string method = bound.has(1) ? in.str(bound[1]).bytes() : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    return in.fail("method must be common, ceil or floor");
  if (!s.is_number())
    return s.is_undefined() ? in.arithmetic(Operator::kAdd, s, s)
                            : in.fail("type {} doesn't define __round__ method", type_name(s));
  if (method == "common") {
    if (s.is_integral() && precision >= 0) return Value::integer(s.as_integer());
    if (s.is_integral()) {
      if (precision < -18) return Value::integer(0);
      const auto unit = static_cast<int64_t>(std::pow(10.0, static_cast<double>(-precision)));
      const int64_t number = s.as_integer();
      int64_t quotient = number / unit;
      const int64_t rest = std::abs(number % unit);
      if (2 * rest > unit || (2 * rest == unit && quotient % 2 != 0)) quotient += number < 0 ? -1 : 1;
      return in.arithmetic(Operator::kMultiply, Value::integer(quotient), Value::integer(unit));
    }
    return Value::real(round_decimal(s.as_real(), precision));
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = s.as_real() * unit;
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

Value file_size(In& in, Self s, Args a) {
  Bound bound(in, "filesizeformat", a, {"binary"});
  const auto number = parse_real(s);
  if (!number) return in.fail("could not convert to float: '{}'", type_name(s));
  const bool binary = bound.truth(0, false);
  const double base = binary ? 1024 : 1000;
  if (*number == 1) return in.string("1 Byte", true);
  if (*number < base) return in.string(fmt::format("{} Bytes", static_cast<int64_t>(std::max(*number, -9e18))), true);
  double unit = base;
  std::string_view prefixes = "kMGTPEZY";
  size_t i = 0;
  for (; i + 1 < prefixes.size() && *number >= unit * base; ++i) unit *= base;
  const std::string prefix =
      binary ? std::string(1, i == 0 ? 'K' : prefixes[i]) + "iB" : std::string(1, prefixes[i]) + "B";
  return in.string(fmt::format("{:.1f} {}", *number / unit, prefix), true);
}

Value format(In& in, Self s, Args a) {
  if (!a.positional.empty() && !a.keyword.empty())
    return in.fail("can't handle positional and keyword arguments at the same time");
  Value text = soft_string(in, s);
  if (!in.ok()) return text;
  if (a.keyword.empty()) return in.format_percent(text, in.tuple(a.positional), false);
  auto named = std::make_shared<DictObject>();
  for (const auto& [name, value, trusted] : a.keyword) named->set(in.string(name, trusted), value);
  return in.format_percent(text, in.dict(std::move(named)), true);
}

Value attribute(In& in, Self s, Args a) {
  Bound bound(in, "attr", a, {"name"}, 1);
  if (!bound.ok()) return in.undefined();
  if (!bound[0].is_string()) return in.fail("attribute name must be string, not '{}'", type_name(bound[0]));
  // Attributes only: items of a mapping are not found this way.
  if (s.is(Kind::kDict) && find_dict_method(bound[0].text().view()) == nullptr &&
      !bound[0].text().view().starts_with("__")) {
    return in.undefined_attribute(s, bound[0]);
  }
  return in.attribute(s, bound[0]);
}

Value safe(In& in, Self s, Args) {
  return s.is_string() && s.string().markup ? s : in.string(in.str(s), true);
}

constexpr auto kTextFilters = std::to_array<BuiltinEntry>({
    {"abs", absolute},
    {"attr", attribute},
    {"capitalize", [](In& in, Self s, Args) { return through_method(in, "capitalize", s, {}); }},
    {"center",
     [](In& in, Self s, Args a) {
       Bound bound(in, "center", a, {"width"});
       return bound.ok()
                  ? through_method(in, "center", s, Arguments{{bound.has(0) ? bound[0] : Value::integer(80)}, {}})
                  : in.undefined();
     }},
    {"d", default_value},
    {"default", default_value},
    {"e", escape},
    {"escape", escape},
    {"filesizeformat", file_size},
    {"float", to_real},
    {"forceescape", force_escape},
    {"format", format},
    {"indent", indent},
    {"int", to_integer},
    {"lower", [](In& in, Self s, Args) { return through_method(in, "lower", s, {}); }},
    {"pprint", [](In& in, Self s, Args) { return in.string(in.repr(s), false); }},
    {"replace", replace},
    {"round", round_number},
    {"safe", safe},
    {"string", [](In& in, Self s, Args) { return soft_string(in, s); }},
    {"striptags", striptags},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"truncate", truncate},
    {"upper", [](In& in, Self s, Args) { return through_method(in, "upper", s, {}); }},
    {"urlencode", urlencode},
    {"wordcount", wordcount},
    {"xmlattr", xmlattr},
});

}  // namespace

const BuiltinEntry* find_text_filter(std::string_view name) {
  return find_in(kTextFilters, name);
}

}  // namespace quire::text::jinja
