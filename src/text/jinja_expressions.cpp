// Evaluation of expressions, and calls.
#include <algorithm>

#include "text/jinja_interpreter.h"

namespace quire::text::jinja {
namespace {

// Bounds what a call copies and compares; no template comes near it.
constexpr size_t kMaxArguments = 1000;

}  // namespace

Value Interpreter::evaluate(const Expression& expression) {
  if (!step()) return undefined();
  if (expression.kind == ExpressionKind::kConstant) return expression.constant;
  line_ = expression.line;
  if (expression.kind == ExpressionKind::kName) return lookup(expression.name);
  if (++depth_ > kWalkerFactor * limits_.max_depth) {
    fail_with(StatusCode::kResourceExhausted, "evaluation is nested too deeply");
  }
  Value value = ok() ? evaluate_in_depth(expression) : undefined();
  --depth_;
  return value;
}

Value Interpreter::evaluate_in_depth(const Expression& expression) {
  const auto child = [&](size_t index) { return evaluate(*expression.children[index]); };
  switch (expression.kind) {
    case ExpressionKind::kTuple:
      return tuple(evaluate_all(expression.children));
    case ExpressionKind::kList:
      return list(evaluate_all(expression.children));
    case ExpressionKind::kDict:
      return evaluate_dict(expression);
    case ExpressionKind::kAttribute:
      return attribute(child(0), expression.constant);
    case ExpressionKind::kItem:
      return evaluate_item(expression);
    case ExpressionKind::kCall: {
      const Value callee = child(0);
      Arguments arguments;
      if (!evaluate_arguments(*expression.call, arguments)) return undefined();
      line_ = expression.line;
      return call(callee, arguments);
    }
    case ExpressionKind::kFilter:
      return evaluate_filter(expression, nullptr);
    case ExpressionKind::kTest:
      return evaluate_test(expression);
    case ExpressionKind::kNot:
      return Value::boolean(!truth(child(0)));
    case ExpressionKind::kNegate:
      return negate(child(0));
    case ExpressionKind::kPositive: {
      Value value = child(0);
      if (value.is(Kind::kBool)) return Value::integer(value.as_integer());
      if (value.is_number()) return value;
      if (value.is_undefined()) return fail("{}", undefined_message(value));
      return fail("bad operand type for unary +: '{}'", type_name(value));
    }
    case ExpressionKind::kArithmetic: {
      Value value = child(0);
      for (size_t i = 0; i < expression.operators.size() && ok(); ++i) {
        const Value right = child(i + 1);
        line_ = expression.line;
        value = arithmetic(expression.operators[i], value, right);
      }
      return value;
    }
    case ExpressionKind::kConcatenate:
      return evaluate_concatenate(expression);
    case ExpressionKind::kCompare:
      return evaluate_compare(expression);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      const bool stops_at = expression.kind == ExpressionKind::kOr;
      Value value = child(0);
      for (size_t i = 1; i < expression.children.size() && ok() && truth(value) != stops_at; ++i) value = child(i);
      return value;
    }
    case ExpressionKind::kConditional:
      return evaluate_conditional(expression);
    default:
      return fail("this expression has no value here");
  }
}

Value Interpreter::evaluate_conditional(const Expression& expression) {
  if (truth(evaluate(*expression.children[0]))) return evaluate(*expression.children[1]);
  if (expression.children[2] != nullptr) return evaluate(*expression.children[2]);
  return undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Values Interpreter::evaluate_all(const std::vector<ExpressionPtr>& expressions) {
  Values values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& expression : expressions) {
    if (!ok()) break;
    values.push_back(evaluate(*expression));
  }
  return values;
}

Value Interpreter::evaluate_dict(const Expression& expression) {
  auto made = std::make_shared<DictObject>();
  for (size_t i = 0; i + 1 < expression.children.size() && ok(); i += 2) {
    const Value key = evaluate(*expression.children[i]);
    if (!hashable(key)) return fail("unhashable type: '{}'", type_name(key));
    made->set(key, evaluate(*expression.children[i + 1]));
  }
  return dict(std::move(made));
}

Value Interpreter::evaluate_item(const Expression& expression) {
  const Value owner = evaluate(*expression.children[0]);
  const Expression& key = *expression.children[1];
  if (key.kind != ExpressionKind::kSlice) return item(owner, evaluate(key));
  const auto part = [&](size_t index) {
    return key.children[index] != nullptr ? evaluate(*key.children[index]) : Value::none();
  };
  const Value start = part(0);
  const Value stop = part(1);
  const Value stride = part(2);
  return ok() ? slice(owner, start, stop, stride) : undefined();
}

Value Interpreter::evaluate_concatenate(const Expression& expression) {
  Text text;
  for (const ExpressionPtr& child : expression.children) {
    const Value value = evaluate(*child);
    if (!ok()) return undefined();
    if (value.is_string()) {
      if (!grow(text.size(), value.text().size())) return undefined();
      text.append(value.text());
    } else {
      text.append(str(value));
    }
  }
  return string(std::move(text));
}

Value Interpreter::evaluate_compare(const Expression& expression) {
  Value left = evaluate(*expression.children[0]);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.children[i + 1]);
    if (!ok()) return undefined();
    line_ = expression.line;
    if (!compare(expression.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

bool Interpreter::compare(Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return equal(a, b);
    case Operator::kNotEqual:
      return !equal(a, b);
    case Operator::kLess:
      return less(a, b, "<");
    case Operator::kGreater:
      return less(b, a, ">");
    case Operator::kLessEqual:
      return less(a, b, "<=") || equal(a, b);
    case Operator::kGreaterEqual:
      return less(b, a, ">=") || equal(a, b);
    case Operator::kIn:
      return contains(b, a);
    case Operator::kNotIn:
      return !contains(b, a);
    default:
      return false;
  }
}

Value Interpreter::evaluate_filter(const Expression& expression, const Value* input) {
  Value value;
  if (expression.children[0] == nullptr) {
    if (input == nullptr) return fail("a filter without a value");
    value = *input;
  } else if (input != nullptr && expression.children[0]->kind == ExpressionKind::kFilter) {
    value = evaluate_filter(*expression.children[0], input);  // a chain over a block's text
  } else {
    value = evaluate(*expression.children[0]);
  }
  Arguments arguments;
  if (!evaluate_arguments(*expression.call, arguments)) return undefined();
  line_ = expression.line;
  if (expression.builtin == nullptr) return fail("No filter named '{}'.", expression.text);
  return apply(*expression.builtin, value, arguments);
}

Value Interpreter::evaluate_test(const Expression& expression) {
  const Value value = evaluate(*expression.children[0]);
  Arguments arguments;
  if (!evaluate_arguments(*expression.call, arguments)) return undefined();
  line_ = expression.line;
  if (expression.builtin == nullptr) return fail("No test named '{}'.", expression.text);
  return Value::boolean(truth(apply(*expression.builtin, value, arguments)));
}

bool Interpreter::refuse_arguments() {
  fail_with(StatusCode::kResourceExhausted, fmt::format("a call has more than {} arguments", kMaxArguments));
  return false;
}

bool Interpreter::evaluate_arguments(const CallSyntax& call_syntax, Arguments& arguments) {
  for (const ExpressionPtr& argument : call_syntax.positional) {
    if (!ok()) return false;
    arguments.positional.push_back(evaluate(*argument));
  }
  if (call_syntax.star != nullptr) {
    for (Value& value : items(evaluate(*call_syntax.star))) arguments.positional.push_back(std::move(value));
  }
  if (arguments.positional.size() > kMaxArguments) return refuse_arguments();
  const auto add_keyword = [&](std::string_view name, const Value& value, bool trusted) {
    for (const KeywordArgument& given : arguments.keyword) {
      if (given.name == name) fail("keyword argument repeated: {}", name);
    }
    arguments.keyword.push_back({std::string(name), value, trusted});
    return arguments.keyword.size() <= kMaxArguments || refuse_arguments();
  };
  for (const auto& [name, argument] : call_syntax.keyword) {
    if (!ok() || !add_keyword(name, evaluate(*argument), true)) return false;
  }
  if (call_syntax.double_star != nullptr) {
    const Value mapping = evaluate(*call_syntax.double_star);
    if (!mapping.is(Kind::kDict)) {
      fail("argument after ** must be a mapping, not {}", type_name(mapping));
      return false;
    }
    for (const auto& [name, value] : mapping.dict().entries) {
      if (!name.is_string()) {
        fail("keywords must be strings");
        return false;
      }
      if (!add_keyword(name.text().view(), value, name.text().fully_trusted())) return false;
    }
  }
  return ok();
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (!step()) return undefined();
  switch (callee.kind()) {
    case Kind::kFunction:
      return callee.object<FunctionObject>().function->function(*this, Value::none(), arguments);
    case Kind::kBoundMethod: {
      const auto& bound = callee.object<BoundMethodObject>();
      return bound.method->function(*this, bound.self, arguments);
    }
    case Kind::kMacro:
      return call_macro(callee, arguments);
    case Kind::kLoop:
      return call_recursive_loop(callee, arguments);
    case Kind::kJoiner: {
      auto& joiner = callee.object<JoinerObject>();
      return std::exchange(joiner.used, true) ? joiner.separator : string(Text());
    }
    case Kind::kUndefined:
      return fail("{}", undefined_message(callee));
    default:
      return fail("'{}' object is not callable", type_name(callee));
  }
}

Value Interpreter::call_macro(const Value& macro_value, const Arguments& arguments) {
  const auto& macro = macro_value.object<MacroObject>();
  if (call_depth_ >= limits_.max_depth) {
    return fail_with(StatusCode::kResourceExhausted,
                     fmt::format("macros call each other deeper than {} levels", limits_.max_depth));
  }
  if (!reserve(1024) || !step(static_cast<int64_t>(macro.syntax->parameters.size()))) return undefined();
  const int32_t line = line_;
  auto scope = std::make_shared<Scope>(Scope{macro.closure, {}});
  if (!bind_macro(*macro.syntax, arguments, *scope)) return undefined();
  const std::shared_ptr<Scope> caller_scope = std::exchange(scope_, std::move(scope));
  ++call_depth_;
  const MacroSyntax& syntax = *macro.syntax;
  const size_t first_default = syntax.parameters.size() - syntax.defaults.size();
  for (size_t i = 0; i < syntax.parameters.size(); ++i) {
    Value& slot = scope_->variables[i].second;
    if (!slot.is_missing()) continue;
    slot = undefined(fmt::format("parameter '{}' was not provided", syntax.parameter_names[i]));
    if (i >= first_default) {
      Value value = evaluate(*syntax.defaults[i - first_default]);
      scope_->variables[i].second = std::move(value);
    }
  }
  Text text = capture([&] { run(syntax.body); });
  --call_depth_;
  scope_ = caller_scope;
  line_ = ok() ? line : line_;
  return string(std::move(text));
}

bool Interpreter::bind_macro(const MacroSyntax& syntax, const Arguments& arguments, Scope& scope) {
  const size_t count = syntax.parameters.size();
  std::vector<bool> used(arguments.keyword.size(), false);
  const auto take_keyword = [&](std::string_view name) {
    for (size_t k = 0; k < arguments.keyword.size(); ++k) {
      if (!used[k] && arguments.keyword[k].name == name) {
        used[k] = true;
        return arguments.keyword[k].value;
      }
    }
    return Value::missing();
  };
  bool declares_caller = false;
  for (size_t i = 0; i < count; ++i) {
    declares_caller |= syntax.parameter_names[i] == "caller";
    Value value = i < arguments.positional.size() ? arguments.positional[i] : take_keyword(syntax.parameter_names[i]);
    scope.variables.emplace_back(syntax.parameters[i], std::move(value));
  }
  if (syntax.uses_caller && !declares_caller) {
    Value caller = take_keyword("caller");
    if (caller.is_missing() || caller.is_none()) caller = undefined("No caller defined");
    scope.variables.emplace_back(syntax_.known.caller, std::move(caller));
  }
  auto rest = std::make_shared<DictObject>();
  for (size_t k = 0; k < used.size(); ++k) {
    if (used[k]) continue;
    const auto& [name, value, trusted] = arguments.keyword[k];
    if (!syntax.uses_kwargs) {
      fail("macro '{}' takes no keyword argument '{}'", syntax.name, name);
      return false;
    }
    rest->set(string(name, trusted), value);
  }
  if (syntax.uses_kwargs) scope.variables.emplace_back(syntax_.known.kwargs, dict(std::move(rest)));
  if (syntax.uses_varargs) {
    Values extra;
    for (size_t i = count; i < arguments.positional.size(); ++i) extra.push_back(arguments.positional[i]);
    scope.variables.emplace_back(syntax_.known.varargs, tuple(std::move(extra)));
  } else if (arguments.positional.size() > count) {
    fail("macro '{}' takes not more than {} argument(s)", syntax.name, count);
  }
  return ok();
}

Value Interpreter::call_recursive_loop(const Value& loop_value, const Arguments& arguments) {
  const auto& loop = loop_value.object<LoopObject>();
  if (loop.recursive == nullptr) {
    return fail("The loop must have the 'recursive' marker to be called recursively.");
  }
  if (arguments.positional.size() != 1) return fail("loop() takes exactly one argument");
  if (call_depth_ >= limits_.max_depth) {
    return fail_with(StatusCode::kResourceExhausted,
                     fmt::format("a recursive loop is deeper than {} levels", limits_.max_depth));
  }
  const std::shared_ptr<Scope> caller_scope = std::exchange(scope_, loop.outer);
  ++call_depth_;
  Text text = capture([&] { run_loop(*loop.recursive, arguments.positional[0], loop.depth0 + 1); });
  --call_depth_;
  scope_ = caller_scope;
  return string(std::move(text));
}

}  // namespace quire::text::jinja
