// JSON in (a request's variables) and out (the tojson filter).
#include <cmath>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {

struct JsonStyle {
  std::string indent;
  bool indented = false;
  std::string_view item_separator;
  std::string_view key_separator;
  bool sort_keys = false;
  bool ensure_ascii = false;
};

namespace {

constexpr int kMaxInputDepth = 100;

std::string json_quote_ascii(std::string_view text) {
  const std::string quoted = json_quote(text);
  std::string result;
  for (size_t at = 0; at < quoted.size();) {
    const char32_t c = next_code_point(quoted, at);
    if (c < 0x80) {
      result += static_cast<char>(c);
    } else if (c < 0x10000) {
      result += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      const auto rest = static_cast<uint32_t>(c) - 0x10000;
      result += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
  }
  return result;
}

std::string json_real(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return python_float(value);
}

}  // namespace

Value Interpreter::from_json(const boost::json::value& json, bool trusted, int depth) {
  if (depth > kMaxInputDepth) return fail("the input is nested deeper than {} levels", kMaxInputDepth);
  // Input is bounded where it comes in; only what a template makes of it is charged.
  const auto text = [trusted](Kind kind, std::string_view bytes) {
    return Value(kind, std::make_shared<StringObject>(Text(to_well_formed(bytes), trusted), false));
  };
  switch (json.kind()) {
    case boost::json::kind::null:
      return Value::none();
    case boost::json::kind::bool_:
      return Value::boolean(json.get_bool());
    case boost::json::kind::int64:
      return Value::integer(json.get_int64());
    case boost::json::kind::uint64:
      if (json.get_uint64() <= static_cast<uint64_t>(INT64_MAX))
        return Value::integer(static_cast<int64_t>(json.get_uint64()));
      return text(Kind::kHugeInteger, std::to_string(json.get_uint64()));
    case boost::json::kind::double_:
      return Value::real(json.get_double());
    case boost::json::kind::string:
      return text(Kind::kString, json.get_string());
    case boost::json::kind::array: {
      auto made = std::make_shared<SequenceObject>();
      for (const auto& element : json.get_array()) {
        made->items.push_back(from_json(element, trusted, depth + 1));
        made->depth = std::max(made->depth, nesting_depth(made->items.back()) + 1);
        if (!ok()) return undefined();
      }
      return Value(Kind::kList, std::move(made));
    }
    case boost::json::kind::object: {
      auto made = std::make_shared<DictObject>();
      for (const auto& [key, element] : json.get_object()) {
        made->set(text(Kind::kString, key), from_json(element, trusted, depth + 1));
        if (!ok()) return undefined();
      }
      return Value(Kind::kDict, std::move(made));
    }
  }
  return Value::none();
}

std::string Interpreter::to_json(const Value& value, const Value& indent, std::string_view item_separator,
                                 std::string_view key_separator, bool sort_keys, bool ensure_ascii) {
  JsonStyle style;
  style.indented = !indent.is_none();
  if (indent.is_string()) style.indent = indent.text().bytes();
  if (indent.is_integral() && indent.as_integer() > 0) {
    if (!reserve(indent.as_integer())) return {};
    style.indent.assign(static_cast<size_t>(indent.as_integer()), ' ');
  }
  style.item_separator = item_separator;
  style.key_separator = key_separator;
  style.sort_keys = sort_keys;
  style.ensure_ascii = ensure_ascii;
  std::string out;
  append_json(out, value, style, 1);
  return out;
}

void Interpreter::append_json(std::string& out, const Value& value, const JsonStyle& style, int level) {
  if (!step() || !reserve(static_cast<int64_t>(style.indent.size()) * level)) return;
  if (static_cast<int64_t>(out.size()) > limits_.max_output_bytes - account_.live) {
    reserve(static_cast<int64_t>(out.size()));
    return;
  }
  const auto quote = [&](std::string_view text) {
    if (!step(static_cast<int64_t>(text.size() / 16))) return;
    out += style.ensure_ascii ? json_quote_ascii(text) : json_quote(text);
  };
  const auto new_line = [&](int depth) {
    if (!style.indented) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) out += style.indent;
  };
  // Each element through `write`; brackets, separators and lines around.
  const auto block = [&](char open, char close, size_t count, const auto& write) {
    out += open;
    for (size_t i = 0; i < count && ok(); ++i) {
      if (i > 0) out += style.item_separator;
      new_line(level);
      write(i);
    }
    if (count > 0) new_line(level - 1);
    out += close;
  };
  switch (value.kind()) {
    case Kind::kNone:
      out += "null";
      return;
    case Kind::kBool:
      out += value.as_boolean() ? "true" : "false";
      return;
    case Kind::kInteger:
      out += fmt::format("{}", value.as_integer());
      return;
    case Kind::kHugeInteger:
      out += value.text().bytes();
      return;
    case Kind::kReal:
      out += json_real(value.as_real());
      return;
    case Kind::kString:
      return quote(value.text().view());
    case Kind::kList:
    case Kind::kTuple: {
      const Values& elements = value.items();
      return block('[', ']', elements.size(), [&](size_t i) { append_json(out, elements[i], style, level + 1); });
    }
    case Kind::kDict: {
      std::vector<std::pair<Value, Value>> entries = value.dict().entries;
      if (style.sort_keys) {
        Values pairs;
        for (const auto& [key, element] : entries) pairs.push_back(tuple({key, element}));
        pairs = sorted(
            std::move(pairs), [](const Value& pair) { return pair.items()[0]; }, false);
        entries.clear();
        for (const Value& pair : pairs) entries.emplace_back(pair.items()[0], pair.items()[1]);
      }
      return block('{', '}', entries.size(), [&](size_t i) {
        const Value& key = entries[i].first;
        if (key.is_string()) {
          quote(key.text().view());
        } else if (key.is_none() || key.is_number() || key.is(Kind::kHugeInteger)) {
          out += '"';
          append_json(out, key, style, level + 1);
          out += '"';
        } else {
          fail("keys must be str, int, float, bool or None, not {}", type_name(key));
        }
        out += style.key_separator;
        append_json(out, entries[i].second, style, level + 1);
      });
    }
    default:
      fail("Object of type {} is not JSON serializable", type_name(value));
  }
}

}  // namespace quire::text::jinja
