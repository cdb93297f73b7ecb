// Tests: "x is defined".
#include "text/jinja_interpreter.h"

namespace quire::text::jinja {
namespace {

using In = Interpreter;
using Self = const Value&;
using Args = const Arguments&;

// The one argument of a test.
Value argument(In& in, std::string_view name, Args arguments) {
  Bound bound(in, name, arguments, {"other"}, 1);
  return bound.ok() ? bound[0] : in.undefined();
}

Value equal_to(In& in, Self s, Args a) {
  return Value::boolean(in.equal(s, argument(in, "eq", a)));
}
Value not_equal_to(In& in, Self s, Args a) {
  return Value::boolean(!in.equal(s, argument(in, "ne", a)));
}
Value less_than(In& in, Self s, Args a) {
  return Value::boolean(in.less(s, argument(in, "lt", a)));
}
Value greater_than(In& in, Self s, Args a) {
  return Value::boolean(in.less(argument(in, "gt", a), s, ">"));
}
Value less_equal(In& in, Self s, Args a) {
  const Value other = argument(in, "le", a);
  return Value::boolean(in.less(s, other, "<=") || in.equal(s, other));
}
Value greater_equal(In& in, Self s, Args a) {
  const Value other = argument(in, "ge", a);
  return Value::boolean(in.less(other, s, ">=") || in.equal(s, other));
}

Value remainder_is(In& in, Self s, const Value& divisor, int64_t expected) {
  const Value remainder = in.arithmetic(Operator::kModulo, s, divisor);
  return Value::boolean(in.ok() && in.equal(remainder, Value::integer(expected)));
}

Value cased(In& in, Self s, bool upper) {
  const Value text = s.is_string() ? s : in.string(in.str(s));
  return find_string_method(upper ? "isupper" : "islower")->function(in, text, {});
}

constexpr auto kTests = std::to_array<BuiltinEntry>({
    {"!=", not_equal_to},
    {"<", less_than},
    {"<=", less_equal},
    {"==", equal_to},
    {">", greater_than},
    {">=", greater_equal},
    {"boolean", [](In&, Self s, Args) { return Value::boolean(s.is(Kind::kBool)); }},
    {"callable", [](In&, Self s, Args) {
       // An undefined value is callable in Python's eyes: its call is what fails.
       return Value::boolean(s.is(Kind::kFunction) || s.is(Kind::kMacro) || s.is(Kind::kBoundMethod) || s.is(Kind::kLoop) ||
                             s.is(Kind::kJoiner) || s.is_undefined());
     }},
    {"defined", [](In&, Self s, Args) { return Value::boolean(!s.is_undefined()); }},
    {"divisibleby", [](In& in, Self s, Args a) { return remainder_is(in, s, argument(in, "divisibleby", a), 0); }},
    {"eq", equal_to},
    {"equalto", equal_to},
    {"escaped", [](In&, Self s, Args) { return Value::boolean(s.is_string() && s.string().markup); }},
    {"even", [](In& in, Self s, Args) { return remainder_is(in, s, Value::integer(2), 0); }},
    {"false", [](In&, Self s, Args) { return Value::boolean(s.is(Kind::kBool) && !s.as_boolean()); }},
    {"filter", [](In&, Self s, Args) { return Value::boolean(s.is_string() && find_filter(s.text().view()) != nullptr); }},
    {"float", [](In&, Self s, Args) { return Value::boolean(s.is(Kind::kReal)); }},
    {"ge", greater_equal},
    {"greaterthan", greater_than},
    {"gt", greater_than},
    {"in", [](In& in, Self s, Args a) { return Value::boolean(in.contains(argument(in, "in", a), s)); }},
    {"integer", [](In&, Self s, Args) { return Value::boolean(s.is(Kind::kInteger) || s.is(Kind::kHugeInteger)); }},
    {"iterable", [](In& in, Self s, Args) { return Value::boolean(in.iterable(s)); }},
    {"le", less_equal},
    {"lessthan", less_than},
    {"lower", [](In& in, Self s, Args) { return cased(in, s, false); }},
    {"lt", less_than},
    {"mapping", [](In&, Self s, Args) { return Value::boolean(s.is(Kind::kDict)); }},
    {"ne", not_equal_to},
    {"none", [](In&, Self s, Args) { return Value::boolean(s.is_none()); }},
    {"number", [](In&, Self s, Args) { return Value::boolean(s.is_number() || s.is(Kind::kHugeInteger)); }},
    {"odd", [](In& in, Self s, Args) { return remainder_is(in, s, Value::integer(2), 1); }},
    {"sameas", [](In& in, Self s, Args a) { return Value::boolean(in.identical(s, argument(in, "sameas", a))); }},
    {"sequence", [](In&, Self s, Args) {
       return Value::boolean(s.is_string() || s.is_sequence() || s.is(Kind::kDict) || s.is(Kind::kRange) || s.is_undefined());
     }},
    {"string", [](In&, Self s, Args) { return Value::boolean(s.is_string()); }},
    {"test", [](In&, Self s, Args) { return Value::boolean(s.is_string() && find_test(s.text().view()) != nullptr); }},
    {"true", [](In&, Self s, Args) { return Value::boolean(s.is(Kind::kBool) && s.as_boolean()); }},
    {"undefined", [](In&, Self s, Args) { return Value::boolean(s.is_undefined()); }},
    {"upper", [](In& in, Self s, Args) { return cased(in, s, true); }},
});

}  // namespace

const BuiltinEntry* find_test(std::string_view name) {
  return find_in(kTests, name);
}

}  // namespace quire::text::jinja
