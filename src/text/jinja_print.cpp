#include "text/jinja_print.h"

#include <cmath>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {
namespace {

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

// After a failure it prints nothing more.
class Printer {
 public:
  Printer(Interpreter& interpreter, const PrintStyle& style) : in_(interpreter), style_(style) {}

  std::string take() { return std::move(out_); }

  // `level`: of the containers around the value.
  void print(const Value& value, int level) {
    const size_t indentation = style_.indent ? style_.indent->size() * static_cast<size_t>(level + 1) : 0;
    if (!in_.step() || !in_.grow(out_.size(), indentation)) return;
    switch (value.kind()) {
      case Kind::kNone:
        out_ += style_.none;
        return;
      case Kind::kBool:
        out_ += value.as_boolean() ? style_.yes : style_.no;
        return;
      case Kind::kInteger:
        out_ += fmt::format("{}", value.as_integer());
        return;
      case Kind::kHugeInteger:
        out_ += value.text().bytes();
        return;
      case Kind::kReal:
        out_ += style_.real(value.as_real());
        return;
      case Kind::kString:
        return print_string(value);
      case Kind::kList:
        return print_items("[", "]", value.items(), level);
      case Kind::kTuple:
        if (style_.is_json) return print_items("[", "]", value.items(), level);
        return print_items("(", value.items().size() == 1 ? ",)" : ")", value.items(), level);
      case Kind::kDict:
        return print_dict(value.dict(), level);
      default:
        break;
    }
    if (style_.is_json) {
      in_.fail("Object of type {} is not JSON serializable", type_name(value));
    } else {
      print_python_object(value, level);
    }
  }

 private:
  // Brackets, separators and lines around what `write` prints for each element.
  template <typename Write>
  void print_block(std::string_view open, std::string_view close, size_t count, int level, const Write& write) {
    out_ += open;
    for (size_t i = 0; i < count && in_.ok(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(level + 1);
      write(i);
    }
    if (count > 0) new_line(level);
    out_ += close;
  }

  void print_items(std::string_view open, std::string_view close, const Values& items, int level) {
    print_block(open, close, items.size(), level, [&](size_t i) { print(items[i], level + 1); });
  }

  void print_dict(const DictObject& dict, int level) {
    std::vector<std::pair<Value, Value>> sorted;
    if (style_.sort_keys) sorted = by_key(dict);
    const auto& entries = style_.sort_keys ? sorted : dict.entries;
    print_block("{", "}", entries.size(), level, [&](size_t i) {
      print_key(entries[i].first, level + 1);
      out_ += style_.key_separator;
      print(entries[i].second, level + 1);
    });
  }

  void print_key(const Value& key, int level) {
    if (!style_.is_json || key.is_string()) return print(key, level);
    if (!key.is_none() && !key.is_number() && !key.is(Kind::kHugeInteger)) {
      in_.fail("keys must be str, int, float, bool or None, not {}", type_name(key));
      return;
    }
    out_ += '"';
    print(key, level);
    out_ += '"';
  }

  std::vector<std::pair<Value, Value>> by_key(const DictObject& dict) {
    Values pairs;
    for (const auto& [key, element] : dict.entries) pairs.push_back(in_.tuple({key, element}));
    std::vector<std::pair<Value, Value>> entries;
    if (!in_.ok()) return entries;
    const auto key_of = [](const Value& pair) { return pair.items()[0]; };
    for (const Value& pair : in_.sorted(std::move(pairs), key_of, false)) {
      entries.emplace_back(pair.items()[0], pair.items()[1]);
    }
    return entries;
  }

  void print_string(const Value& value) {
    const size_t size = value.text().size();
    if (!in_.step(static_cast<int64_t>(size / 16)) || !in_.grow(out_.size(), size)) return;
    const bool is_markup = !style_.is_json && value.string().markup;
    if (is_markup) out_ += "Markup(";
    out_ += style_.quoted(value.text().view());
    if (is_markup) out_ += ')';
  }

  void print_python_object(const Value& value, int level) {
    switch (value.kind()) {
      case Kind::kMissing:
      case Kind::kUndefined:
        out_ += "Undefined";
        return;
      case Kind::kDictView:
        out_ += type_name(value);
        return print_items("([", "])", value.object<DictViewObject>().items, level);
      case Kind::kRange: {
        const auto& range = value.object<RangeObject>();
        out_ += range.step == 1 ? fmt::format("range({}, {})", range.start, range.stop)
                                : fmt::format("range({}, {}, {})", range.start, range.stop, range.step);
        return;
      }
      case Kind::kMacro:
        out_ += fmt::format("<Macro {}>", python_repr(value.object<MacroObject>().syntax->name));
        return;
      case Kind::kLoop:
        out_ +=
            fmt::format("<LoopContext {}/{}>", value.object<LoopObject>().index0 + 1, in_.length(value).value_or(0));
        return;
      default:
        out_ += fmt::format("<{} object>", type_name(value));
        return;
    }
  }

  void new_line(int level) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < level; ++i) out_ += *style_.indent;
  }

  Interpreter& in_;
  const PrintStyle& style_;
  std::string out_;
};

}  // namespace

PrintStyle python_style() {
  return {.none = "None", .yes = "True", .no = "False", .real = python_float, .quoted = python_repr};
}

PrintStyle json_style(bool ensure_ascii) {
  return {.none = "null",
          .yes = "true",
          .no = "false",
          .real = json_real,
          .quoted = ensure_ascii ? json_quote_ascii : json_quote,
          .is_json = true};
}

std::string Interpreter::print(const Value& value, const PrintStyle& style) {
  Printer printer(*this, style);
  printer.print(value, 0);
  return printer.take();
}

}  // namespace quire::text::jinja
