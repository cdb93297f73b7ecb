// Python's operations on values: truth, comparison, iteration, text forms.
#include <algorithm>
#include <cmath>

#include "text/jinja_interpreter.h"
#include "text/jinja_print.h"

namespace quire::text::jinja {

bool Iteration::next(Interpreter& interpreter, Value& item) {
  if (!interpreter.step()) return false;
  const size_t position = position_++;
  switch (iterable_.kind()) {
    case Kind::kList:
    case Kind::kTuple:
      if (position >= iterable_.items().size()) return false;
      item = iterable_.items()[position];
      return true;
    case Kind::kDict:
      if (position >= iterable_.dict().entries.size()) return false;
      item = iterable_.dict().entries[position].first;
      return true;
    case Kind::kDictView: {
      const auto& view = iterable_.object<DictViewObject>();
      if (position >= view.items.size()) return false;
      item = view.items[position];
      return true;
    }
    case Kind::kRange: {
      const auto& range = iterable_.object<RangeObject>();
      if (static_cast<int64_t>(position) >= range.size) return false;
      item = Value::integer(range.start + static_cast<int64_t>(position) * range.step);
      return true;
    }
    case Kind::kString: {
      const StringObject& text = iterable_.string();
      if (byte_ >= text.text.size()) return false;
      const size_t begin = byte_;
      next_code_point(text.text.view(), byte_);
      item = interpreter.string(text.text.slice(begin, byte_), text.markup);
      return interpreter.ok();
    }
    case Kind::kIterator: {
      auto& iterator = iterable_.object<IteratorObject>();
      if (iterator.next >= iterator.items.size()) return false;
      item = std::move(iterator.items[iterator.next++]);
      return true;
    }
    case Kind::kLoop: {
      if (!interpreter.loop_advance(iterable_.object<LoopObject>(), item)) return false;
      item = interpreter.tuple({item, iterable_});
      return interpreter.ok();
    }
    default:
      return false;
  }
}

bool Interpreter::iterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kIterator:
    case Kind::kLoop:
      return true;
    default:
      return false;
  }
}

Values Interpreter::items(const Value& value) {
  if (!iterable(value)) {
    fail("'{}' object is not iterable", type_name(value));
    return {};
  }
  if (value.is_sequence()) return step(static_cast<int64_t>(value.items().size() / 16)) ? value.items() : Values();
  Values result;
  Iteration iteration(value);
  for (Value item; iteration.next(*this, item);) result.push_back(item);
  return ok() ? std::move(result) : Values();
}

std::optional<int64_t> Interpreter::length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(value.string().length);
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    case Kind::kDictView:
      return static_cast<int64_t>(value.object<DictViewObject>().items.size());
    case Kind::kRange:
      return value.object<RangeObject>().size;
    case Kind::kLoop: {
      bool found = false;
      return loop_attribute(value, "length", found).as_integer();
    }
    default:
      return std::nullopt;
  }
}

bool Interpreter::truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInteger:
      return value.as_integer() != 0;
    case Kind::kReal:
      return value.as_real() != 0;
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kLoop:
      return length(value).value_or(1) != 0;
    default:
      return true;
  }
}

bool Interpreter::identical(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_none() || a.is_undefined()) return a.is_none() || a.shared() == b.shared();
  if (a.is_integral()) return a.as_integer() == b.as_integer();
  if (a.is(Kind::kReal)) return a.as_real() == b.as_real();
  if (a.is_string()) return a.text().view() == b.text().view();  // Python interns what templates compare this way
  return a.shared() == b.shared();
}

bool Interpreter::equal(const Value& a, const Value& b) {
  if (!step()) return false;
  if (a.kind() != b.kind() || !(a.is_sequence() || a.is(Kind::kDict) || a.is(Kind::kDictView) || a.is(Kind::kRange))) {
    if (a.is_string() && b.is_string()) step(static_cast<int64_t>(std::min(a.text().size(), b.text().size()) / 256));
    return keys_equal(a, b);
  }
  if (a.shared() == b.shared()) return true;
  if (a.is_sequence()) {
    const Values& left = a.items();
    const Values& right = b.items();
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size() && ok(); ++i) {
      if (!equal(left[i], right[i])) return false;
    }
    return ok();
  }
  if (a.is(Kind::kDict)) {
    if (a.dict().entries.size() != b.dict().entries.size()) return false;
    for (const auto& [key, value] : a.dict().entries) {
      const Value* other = b.dict().find(key);
      if (other == nullptr || !equal(value, *other) || !ok()) return false;
    }
    return true;
  }
  if (a.is(Kind::kRange)) {
    const auto& left = a.object<RangeObject>();
    const auto& right = b.object<RangeObject>();
    if (left.size != right.size) return false;
    return left.size == 0 || (left.start == right.start && (left.size == 1 || left.step == right.step));
  }
  return false;
}

bool Interpreter::less(const Value& a, const Value& b, std::string_view operation) {
  if (!step()) return false;
  if (a.is_integral() && b.is_integral()) return a.as_integer() < b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  // Byte order of UTF-8 is code point order.
  if (a.is_string() && b.is_string()) return a.text().view() < b.text().view();
  if (a.is_sequence() && a.kind() == b.kind()) {
    const Values& left = a.items();
    const Values& right = b.items();
    for (size_t i = 0; i < left.size() && i < right.size() && ok(); ++i) {
      if (!equal(left[i], right[i])) return less(left[i], right[i], operation);
    }
    return left.size() < right.size();
  }
  if (a.is_undefined() || b.is_undefined()) {
    fail("{}", undefined_message(a.is_undefined() ? a : b));
  } else {
    fail("'{}' not supported between instances of '{}' and '{}'", operation, type_name(a), type_name(b));
  }
  return false;
}

bool Interpreter::contains(const Value& container, const Value& wanted) {
  switch (container.kind()) {
    case Kind::kString:
      if (!wanted.is_string()) {
        fail("'in <string>' requires string as left operand, not {}", type_name(wanted));
        return false;
      }
      if (!step(static_cast<int64_t>(container.text().size() / 256))) return false;
      return Finder(wanted.text().view()).find(container.text().view(), 0) != std::string_view::npos;
    case Kind::kDict:
      if (!hashable(wanted)) {
        fail("unhashable type: '{}'", type_name(wanted));
        return false;
      }
      return container.dict().find(wanted) != nullptr;
    default: {
      if (!iterable(container)) {
        fail("argument of type '{}' is not iterable", type_name(container));
        return false;
      }
      Iteration iteration(container);
      for (Value candidate; iteration.next(*this, candidate);) {
        if (equal(candidate, wanted)) return true;
      }
      return false;
    }
  }
}

// Text forms.

Text Interpreter::str(const Value& value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined() || value.is_missing()) return Text();
  // A number spells only digits; what a container spells is its maker's business.
  const bool scalar = nesting_depth(value) == 0;
  return Text(repr(value), scalar && !value.is(Kind::kHugeInteger));
}

std::string Interpreter::repr(const Value& value) {
  return print(value, python_style());
}

Text Interpreter::escape(const Text& text) {
  Text result;
  size_t plain = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    std::string_view entity;
    if (i < text.size()) {
      switch (text.bytes()[i]) {
        case '&':
          entity = "&amp;";
          break;
        case '<':
          entity = "&lt;";
          break;
        case '>':
          entity = "&gt;";
          break;
        case '"':
          entity = "&#34;";
          break;
        case '\'':
          entity = "&#39;";
          break;
        default:
          continue;
      }
    }
    result.append(text, plain, i);
    if (i < text.size()) result.append(entity, text.trusted_at(i));
    plain = i + 1;
  }
  return result;
}

// Attributes and items.

Value Interpreter::bound_method(const Value& self, const BuiltinEntry* method) {
  auto made = std::make_shared<BoundMethodObject>();
  made->self = self;
  made->method = method;
  made->note_depth_of(self);
  return object(Kind::kBoundMethod, std::move(made));
}

namespace {

// Attributes that Python has and the immutable sandbox does not hand out.
bool is_unsafe_attribute(const Value& owner, std::string_view name) {
  if (name.size() > 4 && name.substr(0, 2) == "__" && name.substr(name.size() - 2) == "__") return true;
  static constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                               "insert", "sort",  "extend", "remove"};
  static constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (owner.is(Kind::kList)) return std::find(std::begin(kList), std::end(kList), name) != std::end(kList);
  if (owner.is(Kind::kDict)) return std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
  return false;
}

}  // namespace

Value Interpreter::python_attribute(const Value& owner, std::string_view name, bool& found) {
  found = true;
  if (is_unsafe_attribute(owner, name)) {
    return undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", clip(name, 100), type_name(owner)));
  }
  const BuiltinEntry* method = nullptr;
  switch (owner.kind()) {
    case Kind::kString:
      method = find_string_method(name);
      break;
    case Kind::kList:
    case Kind::kTuple:
      if (owner.object<SequenceObject>().is_group && (name == "grouper" || name == "list")) {
        return owner.items()[name == "grouper" ? 0 : 1];
      }
      method = find_sequence_method(name);
      if (method != nullptr && owner.is(Kind::kTuple) && name == "copy") method = nullptr;
      break;
    case Kind::kDict:
      method = find_dict_method(name);
      break;
    case Kind::kNamespace: {
      const auto& attributes = owner.object<NamespaceObject>().attributes;
      const auto it = attributes.find(std::string(name));
      if (it != attributes.end()) return it->second;
      break;
    }
    case Kind::kLoop:
      return loop_attribute(owner, name, found);
    case Kind::kMacro: {
      const MacroSyntax& syntax = *owner.object<MacroObject>().syntax;
      if (name == "name") return string(syntax.name, true);
      if (name == "catch_kwargs") return Value::boolean(syntax.uses_kwargs);
      if (name == "catch_varargs") return Value::boolean(syntax.uses_varargs);
      if (name == "caller") return Value::boolean(syntax.uses_caller);
      if (name == "arguments") {
        Values names;
        for (const std::string& parameter : syntax.parameter_names) names.push_back(string(parameter, true));
        return tuple(std::move(names));
      }
      break;
    }
    case Kind::kCycler: {
      auto& cycler = owner.object<CyclerObject>();
      if (name == "current") return cycler.items[cycler.position];
      static constexpr BuiltinEntry kNext{"next", [](Interpreter&, const Value& self, const Arguments&) {
                                            auto& source = self.object<CyclerObject>();
                                            Value value = source.items[source.position];
                                            source.position = (source.position + 1) % source.items.size();
                                            return value;
                                          }};
      static constexpr BuiltinEntry kReset{"reset", [](Interpreter&, const Value& self, const Arguments&) {
                                             self.object<CyclerObject>().position = 0;
                                             return Value::none();
                                           }};
      if (name == "next") method = &kNext;
      if (name == "reset") method = &kReset;
      break;
    }
    default:
      break;
  }
  if (method != nullptr) return bound_method(owner, method);
  found = false;
  return Value::none();
}

Value Interpreter::attribute(const Value& owner, const Value& name) {
  if (!step()) return undefined();
  if (owner.is_undefined()) return fail("{}", undefined_message(owner));
  bool found = false;
  Value value = python_attribute(owner, name.text().view(), found);
  if (found) return value;
  if (owner.is(Kind::kDict)) {
    if (const Value* element = owner.dict().find(name.text().view())) return *element;
  }
  return undefined_attribute(owner, name);
}

Value Interpreter::item(const Value& owner, const Value& key) {
  if (!step()) return undefined();
  if (owner.is_undefined()) return fail("{}", undefined_message(owner));
  if (owner.is(Kind::kDict) && hashable(key)) {
    if (const Value* element = owner.dict().find(key)) return *element;
  } else if (key.is_integral()) {
    int64_t index = key.as_integer();
    if (owner.is_string() || owner.is_sequence() || owner.is(Kind::kRange)) {
      const int64_t count = *length(owner);
      if (index < 0) index += count;
      if (index >= 0 && index < count) {
        if (owner.is_sequence()) return owner.items()[static_cast<size_t>(index)];
        if (owner.is(Kind::kRange)) {
          const auto& range = owner.object<RangeObject>();
          return Value::integer(range.start + index * range.step);
        }
        const StringObject& text = owner.string();
        if (!text.ascii() && !step(static_cast<int64_t>(text.text.size() / 64))) return undefined();
        const size_t begin = text.offset_of(static_cast<size_t>(index));
        size_t end = begin;
        next_code_point(text.text.view(), end);
        return string(text.text.slice(begin, end), text.markup);
      }
    }
  }
  if (key.is_string()) {
    bool found = false;
    Value value = python_attribute(owner, key.text().view(), found);
    if (found) return value;
  }
  return undefined_attribute(owner, key);
}

Value Interpreter::slice(const Value& owner, const Value& start, const Value& stop, const Value& stride) {
  if (owner.is_undefined()) return fail("{}", undefined_message(owner));
  const auto usable = [](const Value& part) { return part.is_none() || part.is_integral(); };
  if (!usable(start) || !usable(stop) || !usable(stride) ||
      !(owner.is_string() || owner.is_sequence() || owner.is(Kind::kRange))) {
    return undefined_attribute(owner, Value::none());
  }
  const int64_t step_size = stride.is_none() ? 1 : stride.as_integer();
  if (step_size == 0) return fail("slice step cannot be zero");
  const int64_t count = *length(owner);
  const int64_t low = step_size > 0 ? 0 : -1;
  const int64_t high = step_size > 0 ? count : count - 1;
  const auto clamp = [&](const Value& part, int64_t otherwise) {
    if (part.is_none()) return otherwise;
    int64_t index = part.as_integer();
    if (index < 0) index = index < -count ? low : index + count;
    return std::clamp(index, low, high);
  };
  const int64_t begin = clamp(start, step_size > 0 ? low : high);
  const int64_t end = clamp(stop, step_size > 0 ? high : low);
  if (owner.is_string()) {
    const StringObject& text = owner.string();
    if (!reserve(static_cast<int64_t>(text.text.size()))) return undefined();
    if (step_size == 1) {
      if (begin >= end) return string(Text(), text.markup);
      return string(
          text.text.slice(text.offset_of(static_cast<size_t>(begin)), text.offset_of(static_cast<size_t>(end))),
          text.markup);
    }
    std::vector<size_t> offsets;  // of code points
    for (size_t at = 0; at < text.text.size(); next_code_point(text.text.view(), at)) offsets.push_back(at);
    offsets.push_back(text.text.size());
    if (!step(static_cast<int64_t>(offsets.size() / 4))) return undefined();
    Text result;
    for (int64_t i = begin; step_size > 0 ? i < end : i > end;) {
      result.append(text.text, offsets[static_cast<size_t>(i)], offsets[static_cast<size_t>(i) + 1]);
      if (__builtin_add_overflow(i, step_size, &i)) break;
    }
    return string(std::move(result), text.markup);
  }
  Values picked;
  for (int64_t i = begin; (step_size > 0 ? i < end : i > end) && step();) {
    picked.push_back(owner.is_sequence() ? owner.items()[static_cast<size_t>(i)] : item(owner, Value::integer(i)));
    if (__builtin_add_overflow(i, step_size, &i)) break;
  }
  return owner.is(Kind::kTuple) ? tuple(std::move(picked)) : list(std::move(picked));
}

Value Interpreter::attribute_path(const Value& value, const Value& path, const Value& otherwise) {
  Value current = value;
  const auto follow = [&](const Value& key) {
    current = item(current, key);
    if (current.is_undefined() && !otherwise.is_none()) current = otherwise;
  };
  if (path.is_none() || path.is_missing()) return current;
  if (!path.is_string()) {
    follow(path);
    return current;
  }
  const std::string_view text = path.text().view();
  for (size_t begin = 0; begin <= text.size() && ok();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const bool digits = !part.empty() && part.size() < 18 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    follow(digits ? Value::integer(std::stoll(std::string(part))) : string(part, true));
    begin = end + 1;
  }
  return current;
}

Values Interpreter::sorted(Values values, const std::function<Value(const Value&)>& key, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& value : values) {
    if (!ok()) return {};
    Value sort_key = key(value);
    keyed.emplace_back(std::move(sort_key), std::move(value));
  }
  // Merge sort by hand: std::sort may not be given an order that fails half way.
  std::vector<std::pair<Value, Value>> merged(keyed.size());
  const auto before = [&](const Value& a, const Value& b) { return reverse ? less(b, a) : less(a, b); };
  for (size_t width = 1; width < keyed.size() && ok(); width *= 2) {
    for (size_t begin = 0; begin < keyed.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keyed.size());
      const size_t end = std::min(begin + 2 * width, keyed.size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        const bool take_right = left >= middle || (right < end && before(keyed[right].first, keyed[left].first));
        merged[out] = std::move(take_right ? keyed[right++] : keyed[left++]);
      }
    }
    std::swap(keyed, merged);
  }
  values.clear();
  for (auto& [sort_key, value] : keyed) values.push_back(std::move(value));
  return ok() ? std::move(values) : Values();
}

}  // namespace quire::text::jinja
