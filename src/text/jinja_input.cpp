// A request's variables as values.
#include "text/jinja_interpreter.h"

namespace quire::text::jinja {

namespace {

constexpr int kMaxInputDepth = 100;

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
        made->note_depth_of(made->items.back());
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

}  // namespace quire::text::jinja
