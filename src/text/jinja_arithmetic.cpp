// + - * / // % ** on values.
#include <cmath>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {
namespace {

std::string_view spelling(Operator op) {
  switch (op) {
    case Operator::kAdd:
      return "+";
    case Operator::kSubtract:
      return "-";
    case Operator::kMultiply:
      return "*";
    case Operator::kDivide:
      return "/";
    case Operator::kFloorDivide:
      return "//";
    case Operator::kModulo:
      return "%";
    default:
      return "** or pow()";
  }
}

}  // namespace

Value Interpreter::negate(const Value& value) {
  if (value.is_integral()) return integer_arithmetic(Operator::kSubtract, 0, value.as_integer());
  if (value.is(Kind::kReal)) return Value::real(-value.as_real());
  if (value.is_undefined()) return fail("{}", undefined_message(value));
  return fail("bad operand type for unary -: '{}'", type_name(value));
}

Value Interpreter::arithmetic(Operator op, const Value& a, const Value& b) {
  if (!ok()) return undefined();
  if (a.is_undefined() || b.is_undefined()) {
    // "..." % undefined formats; everything else fails.
    if (!(op == Operator::kModulo && a.is_string())) return fail("{}", undefined_message(a.is_undefined() ? a : b));
  }
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return real_arithmetic(op, a.as_real(), b.as_real());
  if (op == Operator::kModulo && a.is_string()) return format_percent(a, b, !b.is(Kind::kTuple));
  if (op == Operator::kAdd) return add(a, b);
  if (op == Operator::kMultiply) {
    const auto repeatable = [](const Value& value) { return value.is_string() || value.is_sequence(); };
    if (repeatable(a) && b.is_integral()) return repeat(a, b.as_integer());
    if (repeatable(b) && a.is_integral()) return repeat(b, a.as_integer());
  }
  if (a.is(Kind::kHugeInteger) || b.is(Kind::kHugeInteger))
    return fail("integer overflow: {} beyond 64 bits", spelling(op));
  return fail("unsupported operand type(s) for {}: '{}' and '{}'", spelling(op), type_name(a), type_name(b));
}

Value Interpreter::integer_arithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kDivide:
      if (b == 0) return fail("division by zero");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (b == 0) return fail("integer division or modulo by zero");
      if (b == -1) {  // the one quotient that can overflow
        if (op == Operator::kModulo) return Value::integer(0);
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
        break;
      }
      const bool adjust = a % b != 0 && ((a < 0) != (b < 0));
      result = op == Operator::kFloorDivide ? a / b - (adjust ? 1 : 0) : a % b + (adjust ? b : 0);
      break;
    }
    case Operator::kPower: {
      if (b < 0) {
        if (a == 0) return fail("0.0 cannot be raised to a negative power");
        return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      result = 1;
      if (a == 1 || a == -1 || a == 0) {
        result = b == 0 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : a;
        break;
      }
      for (int64_t i = 0; i < b && !overflow; ++i) overflow = __builtin_mul_overflow(result, a, &result);
      break;
    }
    default:
      break;
  }
  if (overflow) return fail("integer overflow: the result of {} does not fit 64 bits", spelling(op));
  return Value::integer(result);
}

Value Interpreter::real_arithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::real(a + b);
    case Operator::kSubtract:
      return Value::real(a - b);
    case Operator::kMultiply:
      return Value::real(a * b);
    case Operator::kDivide:
      return b == 0 ? fail("float division by zero") : Value::real(a / b);
    case Operator::kFloorDivide:
    case Operator::kModulo: {
      if (b == 0) return fail("float {} by zero", op == Operator::kModulo ? "modulo" : "floor division");
      double remainder = std::fmod(a, b);
      double quotient = (a - remainder) / b;
      if (remainder != 0 && (b < 0) != (remainder < 0)) {
        remainder += b;
        quotient -= 1;
      }
      if (remainder == 0) remainder = std::copysign(0.0, b);
      if (op == Operator::kModulo) return Value::real(remainder);
      if (quotient == 0) return Value::real(std::copysign(0.0, a / b));
      const double floored = std::floor(quotient);
      return Value::real(quotient - floored > 0.5 ? floored + 1 : floored);
    }
    case Operator::kPower: {
      if (a == 0 && b < 0) return fail("0.0 cannot be raised to a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b))
        return fail("a complex number has no place in a template");
      if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) return fail("Numerical result out of range");
      return Value::real(result);
    }
    default:
      return undefined();
  }
}

Value Interpreter::add(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    const bool markup = a.string().markup || b.string().markup;
    if (!reserve(static_cast<int64_t>(a.text().size() + b.text().size()))) return undefined();
    Text text = markup && !a.string().markup ? escape(a.text()) : a.text();
    text.append(markup && !b.string().markup ? escape(b.text()) : b.text());
    return string(std::move(text), markup);
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const size_t count = a.items().size() + b.items().size();
    if (!reserve(static_cast<int64_t>(count * sizeof(Value))) || !step(static_cast<int64_t>(count / 16)))
      return undefined();
    Values joined = a.items();
    joined.insert(joined.end(), b.items().begin(), b.items().end());
    return a.is(Kind::kList) ? list(std::move(joined)) : tuple(std::move(joined));
  }
  if (a.is_string()) return fail("can only concatenate str (not \"{}\") to str", type_name(b));
  return fail("unsupported operand type(s) for +: '{}' and '{}'", type_name(a), type_name(b));
}

Value Interpreter::repeat(const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const int64_t unit = value.is_string() ? static_cast<int64_t>(value.text().size() + value.text().overhead_bytes())
                                         : static_cast<int64_t>(value.items().size() * sizeof(Value));
  int64_t total = 0;
  if (unit == 0) count = 0;
  if (__builtin_mul_overflow(unit, count, &total)) total = INT64_MAX;
  if (!reserve(total) || !step(count / 16)) return undefined();
  if (value.is_string()) {
    Text text;
    for (int64_t i = 0; i < count; ++i) text.append(value.text());
    return string(std::move(text), value.string().markup);
  }
  Values repeated;
  repeated.reserve(static_cast<size_t>(total) / sizeof(Value));
  for (int64_t i = 0; i < count; ++i) repeated.insert(repeated.end(), value.items().begin(), value.items().end());
  return value.is(Kind::kList) ? list(std::move(repeated)) : tuple(std::move(repeated));
}

}  // namespace quire::text::jinja
