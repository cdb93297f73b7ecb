// Methods of strings, lists and dicts that a template may call.
#include <algorithm>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {

namespace {

// A string argument; anything else fails.
bool need_string(Interpreter& in, std::string_view method, const Value& value) {
  if (value.is_string()) return true;
  if (in.ok()) in.fail("{}() argument must be str, not {}", method, type_name(value));
  return false;
}

Value part_of(Interpreter& in, const Value& self, size_t begin, size_t end) {
  const StringObject& text = self.string();
  if (begin == 0 && end == text.text.size()) return self;
  return in.string(text.text.slice(begin, std::max(begin, end)), text.markup);
}

// Which characters strip() removes.
bool strips(const Value& characters, char32_t c) {
  if (!characters.is_string()) return is_space(c);
  std::string one;
  append_utf8(one, c);
  return characters.text().view().find(one) != std::string_view::npos;
}

Value strip(Interpreter& in, const Value& self, const Arguments& arguments, std::string_view name, bool left,
            bool right) {
  Bound bound(in, name, arguments, {"chars"});
  if (!bound.ok()) return in.undefined();
  if (!bound.absent(0) && !need_string(in, name, bound[0])) return in.undefined();
  const std::string_view text = self.text().view();
  const Value characters = bound.absent(0) ? Value::none() : bound[0];
  const auto cost = static_cast<int64_t>(characters.is_string() ? characters.text().size() / 32 : 0);
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    size_t next = begin;
    if (!strips(characters, next_code_point(text, next)) || !in.step(cost)) break;
    begin = next;
  }
  while (right && end > begin) {
    const size_t before = previous_boundary(text, end);
    size_t next = before;
    if (!strips(characters, next_code_point(text, next)) || !in.step(cost)) break;
    end = before;
  }
  return part_of(in, self, begin, end);
}

Value split_spaces(Interpreter& in, const Value& self, int64_t limit, bool from_right) {
  const std::string_view text = self.text().view();
  std::vector<std::pair<size_t, size_t>> words;
  size_t begin = std::string_view::npos;
  for (size_t at = 0; at <= text.size();) {
    size_t next = at;
    const bool space = at == text.size() || is_space(next_code_point(text, next));
    if (space && begin != std::string_view::npos) {
      words.emplace_back(begin, at);
      begin = std::string_view::npos;
      if (!in.step()) return in.undefined();
    } else if (!space && begin == std::string_view::npos) {
      begin = at;
    }
    at = at == text.size() ? at + 1 : next;
  }
  Values parts;
  const size_t count = words.size();
  // Past the limit the rest stays one piece, its outer spaces included.
  const bool limited = limit >= 0 && count > static_cast<size_t>(limit);
  const auto cuts = limited ? static_cast<size_t>(limit) : count;
  if (!limited) {
    for (const auto& [from, to] : words) parts.push_back(part_of(in, self, from, to));
  } else if (!from_right) {
    for (size_t i = 0; i < cuts; ++i) parts.push_back(part_of(in, self, words[i].first, words[i].second));
    parts.push_back(part_of(in, self, words[cuts].first, text.size()));
  } else {
    parts.push_back(part_of(in, self, 0, words[count - cuts - 1].second));
    for (size_t i = count - cuts; i < count; ++i) parts.push_back(part_of(in, self, words[i].first, words[i].second));
  }
  return in.list(std::move(parts));
}

Value split(Interpreter& in, const Value& self, const Arguments& arguments, bool from_right) {
  Bound bound(in, from_right ? "rsplit" : "split", arguments, {"sep", "maxsplit"});
  const int64_t limit = bound.integer(1, -1);
  if (!bound.ok()) return in.undefined();
  if (bound.absent(0)) return split_spaces(in, self, limit, from_right);
  if (!need_string(in, "split", bound[0])) return in.undefined();
  const std::string_view text = self.text().view();
  const std::string_view separator = bound[0].text().view();
  if (separator.empty()) return in.fail("empty separator");
  std::vector<size_t> cuts;
  if (!from_right) {
    const Finder finder(separator);
    for (size_t at = 0; limit < 0 || static_cast<int64_t>(cuts.size()) < limit;) {
      at = finder.find(text, at);
      if (at == std::string_view::npos || !in.step()) break;
      cuts.push_back(at);
      at += separator.size();
    }
  } else {
    const ReverseFinder finder(separator);
    for (size_t end = text.size(); limit < 0 || static_cast<int64_t>(cuts.size()) < limit;) {
      const size_t at = finder.find(text.substr(0, end));
      if (at == std::string_view::npos || !in.step()) break;
      cuts.push_back(at);
      end = at;
    }
    std::reverse(cuts.begin(), cuts.end());
  }
  Values parts;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    parts.push_back(part_of(in, self, begin, cut));
    begin = cut + separator.size();
  }
  parts.push_back(part_of(in, self, begin, text.size()));
  return in.list(std::move(parts));
}

Value splitlines(Interpreter& in, const Value& self, const Arguments& arguments) {
  Bound bound(in, "splitlines", arguments, {"keepends"});
  const bool keep = bound.truth(0, false);
  const std::string_view text = self.text().view();
  Values lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(text, at);
    if (!is_line_break(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(part_of(in, self, begin, keep ? at : end));
    if (!in.step()) return in.undefined();
    begin = at;
  }
  if (begin < text.size()) lines.push_back(part_of(in, self, begin, text.size()));
  return in.list(std::move(lines));
}

Value partition(Interpreter& in, const Value& self, const Arguments& arguments, bool from_right) {
  Bound bound(in, "partition", arguments, {"sep"}, 1);
  if (!bound.ok() || !need_string(in, "partition", bound[0])) return in.undefined();
  const std::string_view text = self.text().view();
  const std::string_view separator = bound[0].text().view();
  if (separator.empty()) return in.fail("empty separator");
  const size_t at = from_right ? ReverseFinder(separator).find(text) : Finder(separator).find(text, 0);
  const Value nothing = in.string(Text());
  if (at == std::string_view::npos) {
    return from_right ? in.tuple({nothing, nothing, self}) : in.tuple({self, nothing, nothing});
  }
  return in.tuple({part_of(in, self, 0, at), part_of(in, self, at, at + separator.size()),
                   part_of(in, self, at + separator.size(), text.size())});
}

// [start, end) of code points as bytes, Python's clamping; start > size gives nullopt.
std::optional<std::pair<size_t, size_t>> window(Interpreter& in, const Value& self, Bound& bound) {
  const StringObject& text = self.string();
  const auto count = static_cast<int64_t>(text.length);
  int64_t begin = bound.absent(1) ? 0 : bound.integer(1, 0);
  int64_t end = bound.absent(2) ? count : bound.integer(2, count);
  if (!bound.ok() || !in.step(static_cast<int64_t>(text.text.size() / 256))) return std::nullopt;
  if (begin < 0) begin = std::max<int64_t>(begin + count, 0);
  if (end < 0) end = std::max<int64_t>(end + count, 0);
  end = std::min(end, count);
  if (begin > end) return std::nullopt;
  return std::pair(text.offset_of(static_cast<size_t>(begin)), text.offset_of(static_cast<size_t>(end)));
}

// Code point index of the first or last occurrence, -1.
int64_t find_index(Interpreter& in, std::string_view name, const Value& self, const Arguments& arguments, bool last) {
  Bound bound(in, name, arguments, {"sub", "start", "end"}, 1);
  if (!bound.ok() || !need_string(in, name, bound[0])) return -1;
  const auto range = window(in, self, bound);
  if (!range) return -1;
  const std::string_view text = self.text().view().substr(0, range->second);
  const std::string_view needle = bound[0].text().view();
  size_t at = std::string_view::npos;
  if (!last) {
    at = Finder(needle).find(text, range->first);
  } else {
    at = ReverseFinder(needle).find(text);
    if (at != std::string_view::npos && at < range->first) at = std::string_view::npos;
  }
  return at == std::string_view::npos ? -1 : static_cast<int64_t>(count_code_points(text.substr(0, at)));
}

Value find_or_fail(Interpreter& in, std::string_view name, const Value& self, const Arguments& arguments, bool last) {
  const int64_t index = find_index(in, name, self, arguments, last);
  return index < 0 && in.ok() ? in.fail("substring not found") : Value::integer(index);
}

Value count(Interpreter& in, const Value& self, const Arguments& arguments) {
  Bound bound(in, "count", arguments, {"sub", "start", "end"}, 1);
  if (!bound.ok() || !need_string(in, "count", bound[0])) return in.undefined();
  const auto range = window(in, self, bound);
  if (!range) return Value::integer(0);
  const std::string_view text = self.text().view().substr(0, range->second);
  const std::string_view needle = bound[0].text().view();
  if (needle.empty()) return Value::integer(static_cast<int64_t>(count_code_points(text.substr(range->first))) + 1);
  int64_t found = 0;
  const Finder finder(needle);
  for (size_t at = range->first; (at = finder.find(text, at)) != std::string_view::npos; at += needle.size()) ++found;
  return Value::integer(found);
}

Value starts_or_ends(Interpreter& in, const Value& self, const Arguments& arguments, bool ends) {
  const std::string_view name = ends ? "endswith" : "startswith";
  Bound bound(in, name, arguments, {"prefix", "start", "end"}, 1);
  if (!bound.ok()) return in.undefined();
  const auto range = window(in, self, bound);
  if (!range) return Value::boolean(false);
  const std::string_view text = self.text().view().substr(range->first, range->second - range->first);
  const auto matches = [&](const Value& affix) {
    if (!affix.is_string()) {
      in.fail("{} first arg must be str or a tuple of str, not {}", name, type_name(affix));
      return false;
    }
    return ends ? text.ends_with(affix.text().view()) : text.starts_with(affix.text().view());
  };
  if (!bound[0].is(Kind::kTuple)) return Value::boolean(matches(bound[0]));
  for (const Value& affix : bound[0].items()) {
    if (matches(affix)) return Value::boolean(true);
  }
  return Value::boolean(false);
}

// Case changes go code point by code point, so trust stays where it was.
template <typename Convert>
Value convert(Interpreter& in, const Value& self, Convert append) {
  const Text& text = self.text();
  if (!in.reserve(static_cast<int64_t>(text.size())) || !in.step(static_cast<int64_t>(text.size() / 32)))
    return in.undefined();
  Text result;
  std::string converted;
  for (size_t begin = 0; begin < text.size();) {
    const size_t run = text.run_end(begin);
    converted.clear();
    for (size_t at = begin; at < run;) append(converted, next_code_point(text.view(), at));
    result.append(converted, text.trusted_at(begin));
    begin = run;
  }
  return in.string(std::move(result), self.string().markup);
}

Value upper(Interpreter& in, const Value& self, const Arguments&) {
  return convert(in, self, append_upper);
}
Value lower(Interpreter& in, const Value& self, const Arguments&) {
  return convert(in, self, append_lower);
}
Value capitalize(Interpreter& in, const Value& self, const Arguments&) {
  return convert(in, self, [first = true](std::string& out, char32_t c) mutable {
    (std::exchange(first, false) ? append_title : append_lower)(out, c);
  });
}
Value title_method(Interpreter& in, const Value& self, const Arguments&) {
  return convert(in, self, [inside = false](std::string& out, char32_t c) mutable {
    (inside ? append_lower : append_title)(out, c);
    inside = is_alphabetic(c);
  });
}
Value swapcase(Interpreter& in, const Value& self, const Arguments&) {
  return convert(in, self, [](std::string& out, char32_t c) { (is_upper(c) ? append_lower : append_upper)(out, c); });
}

Value remove_affix(Interpreter& in, const Value& self, const Arguments& arguments, bool suffix) {
  Bound bound(in, suffix ? "removesuffix" : "removeprefix", arguments, {"affix"}, 1);
  if (!bound.ok() || !need_string(in, "removeprefix", bound[0])) return in.undefined();
  const std::string_view text = self.text().view();
  const std::string_view affix = bound[0].text().view();
  if (suffix) return text.ends_with(affix) ? part_of(in, self, 0, text.size() - affix.size()) : self;
  return text.starts_with(affix) ? part_of(in, self, affix.size(), text.size()) : self;
}

Value join_method(Interpreter& in, const Value& self, const Arguments& arguments) {
  Bound bound(in, "join", arguments, {"iterable"}, 1);
  if (!bound.ok()) return in.undefined();
  Text result;
  const Values parts = in.items(bound[0]);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].is_string())
      return in.fail("sequence item {}: expected str instance, {} found", i, type_name(parts[i]));
    if (!in.grow(result.size(), self.text().size() + parts[i].text().size())) return in.undefined();
    if (i > 0) result.append(self.text());
    result.append(self.string().markup && !parts[i].string().markup ? in.escape(parts[i].text()) : parts[i].text());
  }
  return in.string(std::move(result), self.string().markup);
}

Value replace_method(Interpreter& in, const Value& self, const Arguments& arguments) {
  Bound bound(in, "replace", arguments, {"old", "new", "count"}, 2);
  const int64_t limit = bound.integer(2, -1);
  if (!bound.ok() || !need_string(in, "replace", bound[0]) || !need_string(in, "replace", bound[1]))
    return in.undefined();
  const Text& text = self.text();
  const Text& replacement = bound[1].text();
  const std::string_view old = bound[0].text().view();
  const Finder finder(old);
  Text result;
  size_t copied = 0;
  size_t at = 0;
  for (int64_t done = 0; (limit < 0 || done < limit) && at <= text.size(); ++done) {
    at = finder.find(text.view(), at);
    if (at == std::string_view::npos) break;
    if (!in.step() || !in.grow(result.size(), at - copied + replacement.size())) return in.undefined();
    result.append(text, copied, at);
    result.append(replacement);
    copied = at + old.size();
    at = copied;
    if (old.empty()) {  // between all code points
      if (at >= text.size()) break;
      next_code_point(text.view(), at);
    }
  }
  if (copied == 0 && result.empty()) return self;
  result.append(text, copied, text.size());
  return in.string(std::move(result), self.string().markup);
}

Value expandtabs(Interpreter& in, const Value& self, const Arguments& arguments) {
  Bound bound(in, "expandtabs", arguments, {"tabsize"});
  const int64_t size = bound.integer(0, 8);
  if (!bound.ok()) return in.undefined();
  const Text& text = self.text();
  Text result;
  int64_t column = 0;
  for (size_t at = 0; at < text.size() && in.ok();) {
    const size_t begin = at;
    const char32_t c = next_code_point(text.view(), at);
    if (c == '\t') {
      const int64_t spaces = size > 0 ? size - column % size : 0;
      if (!in.reserve(spaces) || !in.grow(result.size(), static_cast<size_t>(spaces))) return in.undefined();
      result.append(std::string(static_cast<size_t>(spaces), ' '), text.trusted_at(begin));
      column += spaces;
    } else {
      result.append(text, begin, at);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return in.string(std::move(result));
}

enum class Side { kLeft, kRight, kCenter };

Value justify(Interpreter& in, std::string_view name, const Value& self, const Arguments& arguments, Side side) {
  Bound bound(in, name, arguments, {"width", "fillchar"}, 1);
  const int64_t width = bound.integer(0, 0);
  if (!bound.ok()) return in.undefined();
  Text fill(" ", true);
  if (bound.has(1)) {
    if (!need_string(in, name, bound[1])) return in.undefined();
    if (bound[1].string().length != 1) return in.fail("The fill character must be exactly one character long");
    fill = bound[1].text();
  }
  const int64_t missing = width - static_cast<int64_t>(self.string().length);
  if (missing <= 0) return self;
  if (missing > INT32_MAX || !in.reserve(missing * static_cast<int64_t>(fill.size()))) {
    in.reserve(INT64_MAX);
    return in.undefined();
  }
  const int64_t before = side == Side::kLeft ? 0 : side == Side::kRight ? missing : missing / 2 + (missing & width & 1);
  Text result;
  for (int64_t i = 0; i < before; ++i) result.append(fill);
  result.append(self.text());
  for (int64_t i = before; i < missing; ++i) result.append(fill);
  return in.string(std::move(result), self.string().markup);
}

Value zfill(Interpreter& in, const Value& self, const Arguments& arguments) {
  Bound bound(in, "zfill", arguments, {"width"}, 1);
  const int64_t missing = bound.integer(0, 0) - static_cast<int64_t>(self.string().length);
  if (!bound.ok() || missing <= 0) return self;
  if (!in.reserve(missing)) return in.undefined();
  const std::string_view text = self.text().view();
  const size_t sign = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  Text result = self.text().slice(0, sign);
  result.append(std::string(static_cast<size_t>(missing), '0'), true);
  result.append(self.text(), sign, text.size());
  return in.string(std::move(result));
}

// Not empty, and every code point passes.
template <typename Predicate>
Value all_of(const Value& self, Predicate predicate) {
  const std::string_view text = self.text().view();
  for (size_t at = 0; at < text.size();) {
    if (!predicate(next_code_point(text, at))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}
// At least one cased code point, and none of the other case.
Value cased(const Value& self, bool upper_case) {
  bool any = false;
  const std::string_view text = self.text().view();
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (upper_case ? is_lower(c) : is_upper(c)) return Value::boolean(false);
    any |= upper_case ? is_upper(c) : is_lower(c);
  }
  return Value::boolean(any);
}
Value istitle(Interpreter&, const Value& self, const Arguments&) {
  bool any = false;
  bool after_cased = false;
  const std::string_view text = self.text().view();
  for (size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, at);
    if (is_upper(c) ? after_cased : is_lower(c) && !after_cased) return Value::boolean(false);
    after_cased = is_upper(c) || is_lower(c);
    any |= after_cased;
  }
  return Value::boolean(any);
}
Value isidentifier(Interpreter&, const Value& self, const Arguments&) {
  const std::string_view text = self.text().view();
  bool first = true;
  for (size_t at = 0; at < text.size(); first = false) {
    const char32_t c = next_code_point(text, at);
    if (c != '_' && !is_alphabetic(c) && (first || !is_decimal_digit(c))) return Value::boolean(false);
  }
  return Value::boolean(!text.empty());
}

Value index_in_sequence(Interpreter& in, const Value& self, const Arguments& arguments) {
  Bound bound(in, "index", arguments, {"value"}, 1);
  for (size_t i = 0; bound.ok() && i < self.items().size(); ++i) {
    if (in.equal(self.items()[i], bound[0])) return Value::integer(static_cast<int64_t>(i));
  }
  return in.fail("value is not in list");
}
Value count_in_sequence(Interpreter& in, const Value& self, const Arguments& arguments) {
  Bound bound(in, "count", arguments, {"value"}, 1);
  int64_t found = 0;
  for (size_t i = 0; bound.ok() && i < self.items().size(); ++i) found += in.equal(self.items()[i], bound[0]) ? 1 : 0;
  return Value::integer(found);
}

using In = Interpreter;
using Self = const Value&;
using Args = const Arguments&;

constexpr auto kStringMethods = std::to_array<BuiltinEntry>({
    {"capitalize", capitalize},
    {"casefold", lower},
    {"center", [](In& in, Self s, Args a) { return justify(in, "center", s, a, Side::kCenter); }},
    {"count", count},
    {"encode", [](In& in, Self, Args) { return in.fail("encode() is not available in chat templates"); }},
    {"endswith", [](In& in, Self s, Args a) { return starts_or_ends(in, s, a, true); }},
    {"expandtabs", expandtabs},
    {"find", [](In& in, Self s, Args a) { return Value::integer(find_index(in, "find", s, a, false)); }},
    {"format", [](In& in, Self s, Args a) { return in.format_braces(s, a); }},
    {"format_map",
     [](In& in, Self s, Args a) {
       Bound bound(in, "format_map", a, {"mapping"}, 1);
       if (!bound.ok() || !bound[0].is(Kind::kDict)) return in.fail("format_map() takes a mapping");
       Arguments named;
       for (const auto& [key, value] : bound[0].dict().entries) {
         if (key.is_string()) named.keyword.push_back({key.text().bytes(), value});
       }
       return in.format_braces(s, named);
     }},
    {"index", [](In& in, Self s, Args a) { return find_or_fail(in, "index", s, a, false); }},
    {"isalnum",
     [](In&, Self s, Args) { return all_of(s, [](char32_t c) { return is_alphabetic(c) || is_numeric(c); }); }},
    {"isalpha", [](In&, Self s, Args) { return all_of(s, is_alphabetic); }},
    {"isascii", [](In&, Self s, Args) { return Value::boolean(s.string().ascii()); }},
    {"isdecimal",
     [](In&, Self s, Args) {
       return all_of(s, [](char32_t c) {
         return is_decimal_digit(c) && (c < 0x80 || c > 0xB9) && !(c >= 0x2070 && c <= 0x2089);
       });
     }},
    {"isdigit", [](In&, Self s, Args) { return all_of(s, is_decimal_digit); }},
    {"isidentifier", isidentifier},
    {"islower", [](In&, Self s, Args) { return cased(s, false); }},
    {"isnumeric", [](In&, Self s, Args) { return all_of(s, is_numeric); }},
    {"isprintable",
     [](In&, Self s, Args) { return s.text().empty() ? Value::boolean(true) : all_of(s, is_printable); }},
    {"isspace", [](In&, Self s, Args) { return all_of(s, is_space); }},
    {"istitle", istitle},
    {"isupper", [](In&, Self s, Args) { return cased(s, true); }},
    {"join", join_method},
    {"ljust", [](In& in, Self s, Args a) { return justify(in, "ljust", s, a, Side::kLeft); }},
    {"lower", lower},
    {"lstrip", [](In& in, Self s, Args a) { return strip(in, s, a, "lstrip", true, false); }},
    {"partition", [](In& in, Self s, Args a) { return partition(in, s, a, false); }},
    {"removeprefix", [](In& in, Self s, Args a) { return remove_affix(in, s, a, false); }},
    {"removesuffix", [](In& in, Self s, Args a) { return remove_affix(in, s, a, true); }},
    {"replace", replace_method},
    {"rfind", [](In& in, Self s, Args a) { return Value::integer(find_index(in, "rfind", s, a, true)); }},
    {"rindex", [](In& in, Self s, Args a) { return find_or_fail(in, "rindex", s, a, true); }},
    {"rjust", [](In& in, Self s, Args a) { return justify(in, "rjust", s, a, Side::kRight); }},
    {"rpartition", [](In& in, Self s, Args a) { return partition(in, s, a, true); }},
    {"rsplit", [](In& in, Self s, Args a) { return split(in, s, a, true); }},
    {"rstrip", [](In& in, Self s, Args a) { return strip(in, s, a, "rstrip", false, true); }},
    {"split", [](In& in, Self s, Args a) { return split(in, s, a, false); }},
    {"splitlines", splitlines},
    {"startswith", [](In& in, Self s, Args a) { return starts_or_ends(in, s, a, false); }},
    {"strip", [](In& in, Self s, Args a) { return strip(in, s, a, "strip", true, true); }},
    {"swapcase", swapcase},
    {"title", title_method},
    {"upper", upper},
    {"zfill", zfill},
});

constexpr auto kSequenceMethods = std::to_array<BuiltinEntry>({
    {"copy", [](In&, Self s, Args) { return s; }},
    {"count", count_in_sequence},
    {"index", index_in_sequence},
});

constexpr auto kDictMethods = std::to_array<BuiltinEntry>({
    {"copy", [](In&, Self s, Args) { return s; }},
    {"get",
     [](In& in, Self s, Args a) {
       Bound bound(in, "get", a, {"key", "default"}, 1);
       if (!bound.ok()) return in.undefined();
       if (!hashable(bound[0])) return in.fail("unhashable type: '{}'", type_name(bound[0]));
       const Value* found = s.dict().find(bound[0]);
       return found != nullptr ? *found : bound.has(1) ? bound[1] : Value::none();
     }},
    {"items", [](In& in, Self s, Args) { return in.dict_view(s, DictViewObject::Part::kItems); }},
    {"keys", [](In& in, Self s, Args) { return in.dict_view(s, DictViewObject::Part::kKeys); }},
    {"values", [](In& in, Self s, Args) { return in.dict_view(s, DictViewObject::Part::kValues); }},
});

}  // namespace

const BuiltinEntry* find_string_method(std::string_view name) {
  return find_in(kStringMethods, name);
}
const BuiltinEntry* find_sequence_method(std::string_view name) {
  return find_in(kSequenceMethods, name);
}
const BuiltinEntry* find_dict_method(std::string_view name) {
  return find_in(kDictMethods, name);
}

}  // namespace quire::text::jinja
