#include "text/jinja_builtins.h"

#include <algorithm>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {

const BuiltinEntry* find_filter(std::string_view name) {
  const BuiltinEntry* found = find_sequence_filter(name);
  return found != nullptr ? found : find_text_filter(name);
}

Bound::Bound(Interpreter& interpreter, std::string_view callee, const Arguments& arguments,
             std::initializer_list<std::string_view> names, size_t required)
    : interpreter_(interpreter), callee_(callee), values_(names.size(), Value::missing()) {
  const auto refuse = [&](const std::string& message) {
    interpreter.fail("{}() {}", callee, message);
    ok_ = false;
    std::fill(values_.begin(), values_.end(), Value::missing());
  };
  if (arguments.positional.size() > names.size()) {
    refuse(fmt::format("takes at most {} arguments ({} given)", names.size(), arguments.positional.size()));
    return;
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (const auto& [name, value, trusted] : arguments.keyword) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      refuse(fmt::format("got an unexpected keyword argument '{}'", name));
      return;
    }
    Value& slot = values_[static_cast<size_t>(found - names.begin())];
    if (!slot.is_missing()) {
      refuse(fmt::format("got multiple values for argument '{}'", name));
      return;
    }
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i].is_missing()) {
      refuse(fmt::format("missing required argument '{}'", *(names.begin() + i)));
      return;
    }
  }
  ok_ = interpreter.ok();
}

int64_t Bound::integer(size_t index, int64_t otherwise) {
  const Value& value = values_[index];
  if (value.is_missing()) return otherwise;
  if (value.is_integral()) return value.as_integer();
  interpreter_.fail("{}(): '{}' object cannot be interpreted as an integer", callee_, type_name(value));
  ok_ = false;
  return otherwise;
}

bool Bound::truth(size_t index, bool otherwise) {
  return values_[index].is_missing() ? otherwise : interpreter_.truth(values_[index]);
}

}  // namespace quire::text::jinja
