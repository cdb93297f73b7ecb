#include "text/jinja_value.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/hashing.h"

namespace quire::text::jinja {

Value Value::boolean(bool value) {
  Value result(Kind::kBool);
  result.integer_ = value ? 1 : 0;
  return result;
}

Value Value::integer(int64_t value) {
  Value result(Kind::kInteger);
  result.integer_ = value;
  return result;
}

Value Value::real(double value) {
  Value result(Kind::kReal);
  result.real_ = value;
  return result;
}

double Value::as_real() const {
  return kind_ == Kind::kReal ? real_ : static_cast<double>(integer_);
}
const Text& Value::text() const {
  return string().text;
}
const StringObject& Value::string() const {
  return object<StringObject>();
}
const std::vector<Value>& Value::items() const {
  return object<SequenceObject>().items;
}
const DictObject& Value::dict() const {
  return object<DictObject>();
}

StringObject::StringObject(Text text_value, bool is_markup)
    : text(std::move(text_value)), length(count_code_points(text.view())), markup(is_markup) {}

namespace {

constexpr size_t kLinearSearch = 8;

// Names of dicts are strangers': nobody shall know beforehand which of them meet.
size_t hash_of_text(std::string_view text) {
  static const uint64_t secret = [] {
    std::random_device random;
    return static_cast<uint64_t>(random()) << 32 | random();
  }();
  return hash_bytes(text.data(), text.size(), secret);
}

}  // namespace

const Value* DictObject::find(const Value& key) const {
  if (index_.empty()) {
    for (const auto& [name, value] : entries) {
      if (keys_equal(name, key)) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(hash_of(key));
  for (auto it = begin; it != end; ++it) {
    if (keys_equal(entries[it->second].first, key)) return &entries[it->second].second;
  }
  return nullptr;
}

const Value* DictObject::find(std::string_view key) const {
  if (index_.empty()) {
    for (const auto& [name, value] : entries) {
      if (name.is_string() && name.text().view() == key) return &value;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(hash_of_text(key));
  for (auto it = begin; it != end; ++it) {
    const Value& name = entries[it->second].first;
    if (name.is_string() && name.text().view() == key) return &entries[it->second].second;
  }
  return nullptr;
}

void DictObject::set(const Value& key, Value value) {
  note_depth_of(key);
  note_depth_of(value);
  if (const Value* present = find(key)) {
    const_cast<Value&>(*present) = std::move(value);
    return;
  }
  entries.emplace_back(key, std::move(value));
  if (entries.size() == kLinearSearch + 1) {
    for (size_t i = 0; i < entries.size(); ++i) index_.emplace(hash_of(entries[i].first), i);
  } else if (entries.size() > kLinearSearch) {
    index_.emplace(hash_of(key), entries.size() - 1);
  }
}

namespace {

// A tuple can name one element many times over, level upon level: what a walk visits is bounded, not what is stored.
bool hashable_within(const Value& value, int& budget) {
  if (--budget < 0) return false;
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kDict:
    case Kind::kDictView:
      return false;
    case Kind::kTuple:
      for (const Value& item : value.items()) {
        if (!hashable_within(item, budget)) return false;
      }
      return true;
    default:
      return true;
  }
}

}  // namespace

bool hashable(const Value& value) {
  int budget = 4096;
  return hashable_within(value, budget);
}

size_t hash_of(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
    case Kind::kHugeInteger:
      return hash_of_text(value.text().view());
    case Kind::kBool:
    case Kind::kInteger:
      return std::hash<double>()(static_cast<double>(value.as_integer()));
    case Kind::kReal:
      return std::hash<double>()(value.as_real());
    case Kind::kTuple: {
      size_t hash = value.items().size();
      for (const Value& item : value.items()) hash = hash * 1000003 + hash_of(item);
      return hash;
    }
    case Kind::kNone:
    case Kind::kUndefined:
      return static_cast<size_t>(value.kind());
    default:
      return std::hash<const void*>()(value.shared().get());
  }
}

bool keys_equal(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.as_integer() == b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
    case Kind::kHugeInteger:
      return a.text().view() == b.text().view();
    case Kind::kNone:
    case Kind::kUndefined:
      return true;
    case Kind::kTuple: {
      if (a.shared() == b.shared()) return true;
      if (a.items().size() != b.items().size()) return false;
      for (size_t i = 0; i < a.items().size(); ++i) {
        if (!keys_equal(a.items()[i], b.items()[i])) return false;
      }
      return true;
    }
    default:
      return a.shared() == b.shared();
  }
}

int nesting_depth(const Value& value) {
  return value.shared() != nullptr ? value.shared()->depth() : 0;
}

void Object::note_depth_of(const Value& held) {
  depth_ = std::max(depth_, nesting_depth(held) + 1);
}

std::string_view type_name(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInteger:
    case Kind::kHugeInteger:
      return "int";
    case Kind::kReal:
      return "float";
    case Kind::kString:
      return value.string().markup ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kDictView:
      switch (value.object<DictViewObject>().part) {
        case DictViewObject::Part::kKeys:
          return "dict_keys";
        case DictViewObject::Part::kValues:
          return "dict_values";
        case DictViewObject::Part::kItems:
          return "dict_items";
      }
      return "dict_items";
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return value.object<IteratorObject>().type_name;
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
    case Kind::kBoundMethod:
      return "builtin_function_or_method";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCycler:
      return "Cycler";
    case Kind::kJoiner:
      return "Joiner";
  }
  return "object";
}

}  // namespace quire::text::jinja
