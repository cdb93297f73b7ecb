// What templates can call: filters, tests, methods of strings, lists and dicts, and global functions, each a plain
// function in a table. A template reaches these and nothing else.
#pragma once

#include <array>
#include <initializer_list>
#include <string_view>

#include "text/jinja_value.h"

namespace quire::text::jinja {

class Interpreter;

struct KeywordArgument {
  std::string name;
  Value value;
  bool trusted = true;  // the template's author wrote the name; false: it came out of a mapping (**mapping)
};

struct Arguments {
  Values positional;
  std::vector<KeywordArgument> keyword;
};

// `self` is the filtered or tested value, the object of a method, none for a function. Fails through the interpreter.
using Builtin = Value (*)(Interpreter&, const Value& self, const Arguments&);

struct BuiltinEntry {
  std::string_view name;
  Builtin function;
};

// nullptr when there is none.
const BuiltinEntry* find_filter(std::string_view name);
const BuiltinEntry* find_test(std::string_view name);
const BuiltinEntry* find_function(std::string_view name);
const BuiltinEntry* find_string_method(std::string_view name);
const BuiltinEntry* find_sequence_method(std::string_view name);
const BuiltinEntry* find_dict_method(std::string_view name);
// The filters of jinja_filters_sequence.cpp and jinja_filters_text.cpp.
const BuiltinEntry* find_sequence_filter(std::string_view name);
const BuiltinEntry* find_text_filter(std::string_view name);

template <size_t N>
const BuiltinEntry* find_in(const std::array<BuiltinEntry, N>& table, std::string_view name) {
  for (const BuiltinEntry& entry : table) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// Arguments matched to parameter names. After a failure every value is missing.
class Bound {
 public:
  Bound(Interpreter& interpreter, std::string_view callee, const Arguments& arguments,
        std::initializer_list<std::string_view> names, size_t required = 0);
  bool ok() const { return ok_; }
  bool has(size_t index) const { return !values_[index].is_missing(); }
  const Value& operator[](size_t index) const { return values_[index]; }
  // The argument or its default; a wrong type fails.
  int64_t integer(size_t index, int64_t otherwise);
  bool truth(size_t index, bool otherwise);
  // Not given or none.
  bool absent(size_t index) const { return values_[index].is_missing() || values_[index].is_none(); }

 private:
  Interpreter& interpreter_;
  std::string_view callee_;
  Values values_;
  bool ok_ = true;
};

}  // namespace quire::text::jinja
