// Values of the template language: Python's, as far as templates see them. A value is small; what is big is shared and
// does not change after it is made, except the few objects that Jinja itself lets a template change (namespace, loop,
// cycler, joiner, an iterator's place).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/jinja_text.h"

namespace quire::text::jinja {

// Memory of one rendering, in bytes. Every object gives back at its end what it took.
struct MemoryAccount {
  int64_t live = 0;
};

class Value;

class Object {
 public:
  Object() = default;
  explicit Object(int initial_depth) : depth_(initial_depth) {}
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  virtual ~Object() {
    if (account_ != nullptr) account_->live -= charged_;
  }
  void charge(MemoryAccount& account, int64_t bytes) {
    account_ = &account;
    charged_ += bytes;
    account.live += bytes;
  }
  // Levels of values in values, this one included, so that walking and freeing one takes bounded stack. 0: holds none,
  // or is kept and emptied by the interpreter (namespace, macro, loop).
  int depth() const { return depth_; }
  void note_depth_of(const Value& held);

 private:
  int depth_ = 0;
  MemoryAccount* account_ = nullptr;
  int64_t charged_ = 0;
};

enum class Kind : uint8_t {
  kMissing,  // an argument that was not given; never seen by a template
  kUndefined,
  kNone,
  kBool,
  kInteger,
  kHugeInteger,  // beyond 64 bits signed, from the input: can be passed on, printed and compared for equality
  kReal,
  kString,
  kList,
  kTuple,
  kDict,
  kDictView,
  kRange,
  kIterator,
  kNamespace,
  kMacro,
  kFunction,
  kBoundMethod,
  kLoop,
  kCycler,
  kJoiner,
};

struct StringObject;
struct SequenceObject;
struct DictObject;

class Value {
 public:
  Value() = default;  // none
  static Value missing() { return Value(Kind::kMissing); }
  static Value none() { return Value(); }
  static Value boolean(bool value);
  static Value integer(int64_t value);
  static Value real(double value);
  Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_integral() const { return kind_ == Kind::kInteger || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kReal; }

  // REQUIRES: the kind, in each.
  bool as_boolean() const { return integer_ != 0; }
  int64_t as_integer() const { return integer_; }  // also of a boolean
  double as_real() const;                          // of any number
  const Text& text() const;                        // of a string or huge integer
  const StringObject& string() const;
  const std::vector<Value>& items() const;  // of a list or tuple
  const DictObject& dict() const;
  template <typename T>
  T& object() const {
    return static_cast<T&>(*object_);
  }
  const std::shared_ptr<Object>& shared() const { return object_; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Kind kind_ = Kind::kNone;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<Object> object_;
};

using Values = std::vector<Value>;

struct StringObject : Object {
  explicit StringObject(Text text_value, bool is_markup);
  size_t offset_of(size_t code_point) const {
    return ascii() ? std::min(code_point, text.size()) : code_point_offset(text.view(), code_point);
  }
  bool ascii() const { return length == text.size(); }

  Text text;
  size_t length;  // code points
  bool markup;    // Markup: joined with plain text, the plain text is escaped
};

struct SequenceObject : Object {
  SequenceObject() : Object(1) {}
  Values items;
  bool is_group = false;  // groupby's (grouper, list)
};

// Insertion ordered; keys as Python compares them (1 == 1.0 == True).
struct DictObject : Object {
  DictObject() : Object(1) {}
  // nullptr when there is none.
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);

  std::vector<std::pair<Value, Value>> entries;

 private:
  std::unordered_multimap<size_t, size_t> index_;  // hash to entry, once there are more than a few
};

struct DictViewObject : Object {
  DictViewObject() : Object(1) {}
  enum class Part { kKeys, kValues, kItems };
  Part part = Part::kItems;
  Value dict;
  Values items;
};

struct RangeObject : Object {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  int64_t size = 0;
};

// A generator or iterator: gives each item once.
struct IteratorObject : Object {
  IteratorObject() : Object(1) {}
  std::string_view type_name = "generator";
  Values items;
  size_t next = 0;
};

struct UndefinedObject : Object {
  std::string hint;        // the whole message, if not empty
  std::string name;        // of what is missing
  std::string owner_type;  // of the object it is missing from; empty: a variable
  bool name_is_string = true;
};

struct NamespaceObject : Object {
  std::unordered_map<std::string, Value> attributes;
  std::vector<std::string> order;
};

struct CyclerObject : Object {
  Values items;
  size_t position = 0;
};

struct JoinerObject : Object {
  Value separator;
  bool used = false;
};

bool hashable(const Value& value);
size_t hash_of(const Value& value);
// == of Python for what dict keys can be; containers are compared by Interpreter::equal.
bool keys_equal(const Value& a, const Value& b);
// 0 for what holds nothing.
int nesting_depth(const Value& value);
// "str", "list", "NoneType", ...
std::string_view type_name(const Value& value);

}  // namespace quire::text::jinja
