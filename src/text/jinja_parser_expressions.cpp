#include "text/jinja_parser_expressions.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_builtins.h"

namespace quire::text::jinja {
namespace {

constexpr int64_t kMaxNodes = 200'000;
// A tree may be deeper than its nesting, by chains such as a|b|c.d[e]: so many times.
constexpr int kChainFactor = 4;

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kVariableEnd:
      return "end of print statement";
    case TokenKind::kBlockEnd:
      return "end of statement block";
    case TokenKind::kData:
      return "template text";
    default:
      return std::string(clip(token.text, 40));
  }
}

Value constant_string(std::string text) {
  return Value(Kind::kString, std::make_shared<StringObject>(Text(std::move(text), true), false));
}

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser)
    : parser_(parser), ok_(++parser.depth_ <= parser.max_depth_) {
  if (!ok_ && parser.status_.ok()) {
    parser.status_ = resource_exhausted("chat template, line {}: nested deeper than {} levels", parser.current().line,
                                        parser.max_depth_);
    parser.position_ = parser.tokens_.size() - 1;
  }
}

void ExpressionParser::fail(std::string_view message) {
  if (status_.ok()) status_ = invalid_argument("chat template, line {}: {}", current().line, message);
  position_ = tokens_.size() - 1;
}

void ExpressionParser::fail_unknown(const UnknownBuiltin& unknown) {
  if (status_.ok()) status_ = invalid_argument("chat template, line {}: {}", unknown.line, unknown.message);
}

void ExpressionParser::forgive_unknown_since(size_t mark) {
  unknown_.erase(std::remove_if(unknown_.begin() + static_cast<std::ptrdiff_t>(mark), unknown_.end(),
                                [](const UnknownBuiltin& unknown) { return !unknown.hard; }),
                 unknown_.end());
}

void ExpressionParser::count_node() {
  if (++num_nodes_ > kMaxNodes && status_.ok()) {
    status_ = resource_exhausted("chat template, line {}: more than {} nodes", current().line, kMaxNodes);
    position_ = tokens_.size() - 1;
  }
}

NameId ExpressionParser::intern(std::string_view name) {
  const auto [it, added] = name_ids_.try_emplace(std::string(name), static_cast<NameId>(names_.size()));
  if (added) names_.emplace_back(name);
  return it->second;
}

bool ExpressionParser::skip_operator(std::string_view text) {
  if (!at_operator(text)) return false;
  advance();
  return true;
}
bool ExpressionParser::skip_name(std::string_view text) {
  if (!at_name(text)) return false;
  advance();
  return true;
}
void ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (at(kind) && kind != TokenKind::kEnd) return advance();
  fail(fmt::format("expected {}, got '{}'", what, describe(current())));
}
void ExpressionParser::expect_operator(std::string_view text) {
  if (!skip_operator(text)) fail(fmt::format("expected token '{}', got '{}'", text, describe(current())));
}
void ExpressionParser::expect_name(std::string_view text) {
  if (!skip_name(text)) fail(fmt::format("expected token '{}', got '{}'", text, describe(current())));
}

ExpressionPtr ExpressionParser::make(ExpressionKind kind, int32_t line) {
  count_node();
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  return node;
}

void ExpressionParser::adopt(Expression& parent, ExpressionPtr child) {
  if (child != nullptr) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kChainFactor * max_depth_ && status_.ok()) {
      status_ = resource_exhausted("chat template, line {}: an expression is deeper than {} levels", parent.line,
                                   kChainFactor * max_depth_);
      position_ = tokens_.size() - 1;
    }
  }
  parent.children.push_back(std::move(child));
}

ExpressionPtr ExpressionParser::parse_expression() {
  return parse_conditional();
}

ExpressionPtr ExpressionParser::parse_conditional() {
  const Nesting nesting(*this);
  if (!nesting.ok()) return make(ExpressionKind::kConstant, 0);
  int32_t line = current().line;
  const size_t mark = unknown_.size();
  ExpressionPtr then = parse_or();
  while (skip_name("if")) {
    ExpressionPtr node = make(ExpressionKind::kConditional, line);
    adopt(*node, parse_or());
    adopt(*node, std::move(then));
    adopt(*node, skip_name("else") ? parse_conditional() : nullptr);
    then = std::move(node);
    forgive_unknown_since(mark);
    line = current().line;
  }
  return then;
}

ExpressionPtr ExpressionParser::parse_chain(ExpressionKind kind, Rule operand,
                                            std::initializer_list<std::pair<std::string_view, Operator>> operators) {
  const int32_t line = current().line;
  ExpressionPtr first = (this->*operand)();
  ExpressionPtr chain;
  while (status_.ok()) {
    const auto found = std::find_if(operators.begin(), operators.end(), [this](const auto& candidate) {
      return current().text == candidate.first && (at(TokenKind::kOperator) || at(TokenKind::kName));
    });
    if (found == operators.end()) break;
    advance();
    if (chain == nullptr) {
      chain = make(kind, line);
      adopt(*chain, std::move(first));
    }
    chain->operators.push_back(found->second);
    adopt(*chain, (this->*operand)());
  }
  return chain != nullptr ? std::move(chain) : std::move(first);
}

ExpressionPtr ExpressionParser::parse_or() {
  return parse_chain(ExpressionKind::kOr, &ExpressionParser::parse_and, {{"or", Operator::kAdd}});
}
ExpressionPtr ExpressionParser::parse_and() {
  return parse_chain(ExpressionKind::kAnd, &ExpressionParser::parse_not, {{"and", Operator::kAdd}});
}

ExpressionPtr ExpressionParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Nesting nesting(*this);
  ExpressionPtr node = make(ExpressionKind::kNot, current().line);
  if (!nesting.ok()) return node;
  advance();
  adopt(*node, parse_not());
  return node;
}

ExpressionPtr ExpressionParser::parse_compare() {
  static constexpr std::pair<std::string_view, Operator> kOperators[] = {
      {"==", Operator::kEqual},     {"!=", Operator::kNotEqual}, {"<", Operator::kLess},
      {"<=", Operator::kLessEqual}, {">", Operator::kGreater},   {">=", Operator::kGreaterEqual}};
  const int32_t line = current().line;
  ExpressionPtr first = parse_sum();
  ExpressionPtr chain;
  while (status_.ok()) {
    Operator found = Operator::kIn;
    if (at_name("not") && look_ahead().kind == TokenKind::kName && look_ahead().text == "in") {
      found = Operator::kNotIn;
      advance();
    } else if (!at_name("in")) {
      const auto* known = std::find_if(std::begin(kOperators), std::end(kOperators),
                                       [this](const auto& candidate) { return at_operator(candidate.first); });
      if (known == std::end(kOperators)) break;
      found = known->second;
    }
    advance();
    if (chain == nullptr) {
      chain = make(ExpressionKind::kCompare, line);
      adopt(*chain, std::move(first));
    }
    chain->operators.push_back(found);
    adopt(*chain, parse_sum());
  }
  return chain != nullptr ? std::move(chain) : std::move(first);
}

ExpressionPtr ExpressionParser::parse_sum() {
  return parse_chain(ExpressionKind::kArithmetic, &ExpressionParser::parse_concatenation,
                     {{"+", Operator::kAdd}, {"-", Operator::kSubtract}});
}
ExpressionPtr ExpressionParser::parse_concatenation() {
  return parse_chain(ExpressionKind::kConcatenate, &ExpressionParser::parse_product, {{"~", Operator::kAdd}});
}
ExpressionPtr ExpressionParser::parse_product() {
  return parse_chain(
      ExpressionKind::kArithmetic, &ExpressionParser::parse_power,
      {{"*", Operator::kMultiply}, {"/", Operator::kDivide}, {"//", Operator::kFloorDivide}, {"%", Operator::kModulo}});
}
ExpressionPtr ExpressionParser::parse_power() {
  const auto operand = +[](ExpressionParser& self) { return self.parse_unary(true); };
  const int32_t line = current().line;
  ExpressionPtr first = operand(*this);
  ExpressionPtr chain;
  while (status_.ok() && skip_operator("**")) {
    if (chain == nullptr) {
      chain = make(ExpressionKind::kArithmetic, line);
      adopt(*chain, std::move(first));
    }
    chain->operators.push_back(Operator::kPower);
    adopt(*chain, operand(*this));
  }
  return chain != nullptr ? std::move(chain) : std::move(first);
}

ExpressionPtr ExpressionParser::parse_unary(bool with_filter) {
  ExpressionPtr node;
  if (at_operator("-") || at_operator("+")) {
    const Nesting nesting(*this);
    node = make(at_operator("-") ? ExpressionKind::kNegate : ExpressionKind::kPositive, current().line);
    if (!nesting.ok()) return node;
    advance();
    adopt(*node, parse_unary(false));
  } else {
    node = parse_primary(false);
  }
  node = parse_postfix(std::move(node));
  if (!with_filter) return node;
  while (status_.ok()) {
    if (at_operator("|")) {
      node = parse_filters(std::move(node));
    } else if (at_name("is")) {
      node = parse_test(std::move(node));
    } else if (at_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_primary(bool namespaces) {
  const Token token = current();
  if (token.kind == TokenKind::kName) return parse_name(namespaces);
  if (token.kind == TokenKind::kString) return parse_strings();
  if (token.kind == TokenKind::kInteger || token.kind == TokenKind::kReal) return parse_number();
  if (at_operator("(")) {
    advance();
    ExpressionPtr node = parse_tuple({.parentheses = true});
    expect_operator(")");
    return node;
  }
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  fail(fmt::format("unexpected '{}'", describe(token)));
  return make(ExpressionKind::kConstant, token.line);
}

ExpressionPtr ExpressionParser::parse_name(bool namespaces) {
  const Token token = current();
  advance();
  const std::string_view name = token.text;
  const bool is_true = name == "true" || name == "True";
  if (is_true || name == "false" || name == "False" || name == "none" || name == "None") {
    ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
    node->constant = name == "none" || name == "None" ? Value::none() : Value::boolean(is_true);
    return node;
  }
  if (namespaces && skip_operator(".")) {
    ExpressionPtr node = make(ExpressionKind::kNamespaceTarget, token.line);
    node->name = intern(name);
    node->text = current().text;
    expect(TokenKind::kName, "an attribute name");
    return node;
  }
  for (MacroSyntax* macro : macros_) {
    macro->uses_caller |= name == "caller";
    macro->uses_varargs |= name == "varargs";
    macro->uses_kwargs |= name == "kwargs";
  }
  ExpressionPtr node = make(ExpressionKind::kName, token.line);
  node->name = intern(name);
  return node;
}

ExpressionPtr ExpressionParser::parse_number() {
  const Token token = current();
  std::string digits(token.text);
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  ExpressionPtr node = make(ExpressionKind::kConstant, token.line);
  const char* begin = digits.data();
  const char* end = begin + digits.size();
  if (token.kind == TokenKind::kReal) {
    double value = 0;
    const auto parsed = std::from_chars(begin, end, value);
    if (parsed.ec == std::errc::result_out_of_range) value = std::strtod(begin, nullptr);
    node->constant = Value::real(value);
  } else {
    int base = 10;
    if (digits.size() > 2 && digits[0] == '0') {
      const char mark = static_cast<char>(digits[1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10) begin += 2;
    }
    int64_t value = 0;
    const auto parsed = std::from_chars(begin, end, value, base);
    if (parsed.ec != std::errc() || parsed.ptr != end) fail(fmt::format("the number {} is out of range", digits));
    node->constant = Value::integer(value);
  }
  advance();
  return node;
}

ExpressionPtr ExpressionParser::parse_strings() {
  ExpressionPtr node = make(ExpressionKind::kConstant, current().line);
  std::string text;
  while (at(TokenKind::kString)) {
    auto part = decode_string_literal(current().text, current().line);
    if (!part.ok()) {
      if (status_.ok()) status_ = part.status();
      position_ = tokens_.size() - 1;
      break;
    }
    text += *part;
    advance();
  }
  node->constant = constant_string(std::move(text));
  return node;
}

ExpressionPtr ExpressionParser::parse_tuple(TupleOptions options) {
  const int32_t line = current().line;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (status_.ok()) {
    if (!items.empty()) expect_operator(",");
    if (at(TokenKind::kVariableEnd) || at(TokenKind::kBlockEnd) || at_operator(")") ||
        (!options.end.empty() && at_name(options.end))) {
      break;
    }
    items.push_back(options.target        ? parse_primary(options.namespaces)
                    : options.conditional ? parse_expression()
                                          : parse_or());
    if (!at_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!items.empty()) return std::move(items[0]);
    if (!options.parentheses) fail(fmt::format("Expected an expression, got '{}'", describe(current())));
  }
  ExpressionPtr node = make(ExpressionKind::kTuple, line);
  for (ExpressionPtr& item : items) adopt(*node, std::move(item));
  return node;
}

ExpressionPtr ExpressionParser::parse_target(TupleOptions options) {
  options.target = true;
  ExpressionPtr node = parse_tuple(options);
  const auto assignable = [](const Expression& target, const auto& self) -> bool {
    if (target.kind == ExpressionKind::kName || target.kind == ExpressionKind::kNamespaceTarget) return true;
    return target.kind == ExpressionKind::kTuple &&
           std::all_of(target.children.begin(), target.children.end(),
                       [&](const ExpressionPtr& child) { return self(*child, self); });
  };
  if (status_.ok() && !assignable(*node, assignable)) fail("can't assign to this expression");
  return node;
}

ExpressionPtr ExpressionParser::parse_list() {
  ExpressionPtr node = make(ExpressionKind::kList, current().line);
  advance();
  while (status_.ok() && !at_operator("]")) {
    if (!node->children.empty()) expect_operator(",");
    if (at_operator("]")) break;
    adopt(*node, parse_expression());
  }
  expect_operator("]");
  return node;
}

ExpressionPtr ExpressionParser::parse_dict() {
  ExpressionPtr node = make(ExpressionKind::kDict, current().line);
  advance();
  while (status_.ok() && !at_operator("}")) {
    if (!node->children.empty()) expect_operator(",");
    if (at_operator("}")) break;
    adopt(*node, parse_expression());
    expect_operator(":");
    adopt(*node, parse_expression());
  }
  expect_operator("}");
  return node;
}

ExpressionPtr ExpressionParser::parse_postfix(ExpressionPtr node) {
  while (status_.ok()) {
    if (at_operator(".") || at_operator("[")) {
      node = parse_subscript(std::move(node));
    } else if (at_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

ExpressionPtr ExpressionParser::parse_subscript(ExpressionPtr node) {
  const int32_t line = current().line;
  if (skip_operator(".")) {
    if (at(TokenKind::kName)) {
      ExpressionPtr attribute = make(ExpressionKind::kAttribute, line);
      attribute->text = current().text;
      attribute->constant = constant_string(attribute->text);
      advance();
      adopt(*attribute, std::move(node));
      return attribute;
    }
    if (!at(TokenKind::kInteger)) fail("expected name or number");
    ExpressionPtr item = make(ExpressionKind::kItem, line);
    adopt(*item, std::move(node));
    adopt(*item, parse_number());
    return item;
  }
  advance();
  std::vector<ExpressionPtr> arguments;
  while (status_.ok() && !at_operator("]")) {
    if (!arguments.empty()) expect_operator(",");
    arguments.push_back(parse_subscript_argument());
  }
  expect_operator("]");
  ExpressionPtr item = make(ExpressionKind::kItem, line);
  adopt(*item, std::move(node));
  if (arguments.size() == 1) {
    adopt(*item, std::move(arguments[0]));
  } else {
    ExpressionPtr tuple = make(ExpressionKind::kTuple, line);
    for (ExpressionPtr& argument : arguments) {
      if (argument->kind == ExpressionKind::kSlice) fail("a slice cannot be part of a tuple");
      adopt(*tuple, std::move(argument));
    }
    adopt(*item, std::move(tuple));
  }
  return item;
}

ExpressionPtr ExpressionParser::parse_subscript_argument() {
  const int32_t line = current().line;
  ExpressionPtr start;
  if (!at_operator(":")) {
    start = parse_expression();
    if (!at_operator(":")) return start;
  }
  ExpressionPtr slice = make(ExpressionKind::kSlice, line);
  adopt(*slice, std::move(start));
  for (int part = 0; part < 2; ++part) {
    const bool given = skip_operator(":") && !at_operator(":") && !at_operator("]") && !at_operator(",");
    adopt(*slice, given ? parse_expression() : nullptr);
  }
  return slice;
}

std::unique_ptr<CallSyntax> ExpressionParser::parse_call_arguments() {
  auto call = std::make_unique<CallSyntax>();
  expect_operator("(");
  const auto ensure = [this](bool condition) {
    if (!condition) fail("invalid syntax for function call expression");
  };
  for (bool first = true; status_.ok() && !at_operator(")"); first = false) {
    if (!first) expect_operator(",");
    if (at_operator(")")) break;
    if (skip_operator("*")) {
      ensure(call->star == nullptr && call->double_star == nullptr);
      call->star = parse_expression();
    } else if (skip_operator("**")) {
      ensure(call->double_star == nullptr);
      call->double_star = parse_expression();
    } else if (at(TokenKind::kName) && look_ahead().kind == TokenKind::kOperator && look_ahead().text == "=") {
      ensure(call->double_star == nullptr);
      std::string name(current().text);
      advance();
      advance();
      call->keyword.emplace_back(std::move(name), parse_expression());
    } else {
      ensure(call->star == nullptr && call->double_star == nullptr && call->keyword.empty());
      call->positional.push_back(parse_expression());
    }
  }
  expect_operator(")");
  return call;
}

namespace {

int32_t depth_of(const CallSyntax& call) {
  int32_t depth = 0;
  const auto see = [&depth](const ExpressionPtr& expression) {
    if (expression != nullptr) depth = std::max(depth, expression->depth);
  };
  for (const auto& argument : call.positional) see(argument);
  for (const auto& [name, argument] : call.keyword) see(argument);
  see(call.star);
  see(call.double_star);
  return depth;
}

}  // namespace

ExpressionPtr ExpressionParser::parse_call(ExpressionPtr node) {
  ExpressionPtr call = make(ExpressionKind::kCall, current().line);
  call->call = parse_call_arguments();
  call->depth = depth_of(*call->call) + 1;
  adopt(*call, std::move(node));
  return call;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name(current().text);
  expect(TokenKind::kName, "a name");
  while (skip_operator(".")) {
    name += "." + std::string(current().text);
    expect(TokenKind::kName, "a name");
  }
  return name;
}

ExpressionPtr ExpressionParser::parse_filter(ExpressionPtr value) {
  ExpressionPtr node = make(ExpressionKind::kFilter, current().line);
  node->text = parse_dotted_name();
  node->builtin = find_filter(node->text);
  if (node->builtin == nullptr)
    unknown_.push_back({fmt::format("No filter named '{}'.", node->text), node->line, false});
  node->call = at_operator("(") ? parse_call_arguments() : std::make_unique<CallSyntax>();
  node->depth = depth_of(*node->call) + 1;
  adopt(*node, std::move(value));
  return node;
}

ExpressionPtr ExpressionParser::parse_filters(ExpressionPtr value) {
  while (status_.ok() && skip_operator("|")) value = parse_filter(std::move(value));
  return value;
}

ExpressionPtr ExpressionParser::parse_test(ExpressionPtr value) {
  const int32_t line = current().line;
  advance();
  const bool negated = skip_name("not");
  ExpressionPtr node = make(ExpressionKind::kTest, line);
  node->text = parse_dotted_name();
  node->builtin = find_test(node->text);
  if (node->builtin == nullptr) unknown_.push_back({fmt::format("No test named '{}'.", node->text), line, false});
  if (at_operator("(")) {
    node->call = parse_call_arguments();
  } else {
    node->call = std::make_unique<CallSyntax>();
    const bool has_argument = at(TokenKind::kString) || at(TokenKind::kInteger) || at(TokenKind::kReal) ||
                              at_operator("[") || at_operator("{") ||
                              (at(TokenKind::kName) && !at_name("else") && !at_name("or") && !at_name("and"));
    if (has_argument) {
      if (at_name("is")) fail("You cannot chain multiple tests with is");
      const Nesting nesting(*this);
      if (nesting.ok()) node->call->positional.push_back(parse_postfix(parse_primary(false)));
    }
  }
  node->depth = depth_of(*node->call) + 1;
  adopt(*node, std::move(value));
  if (!negated) return node;
  ExpressionPtr inverted = make(ExpressionKind::kNot, line);
  adopt(*inverted, std::move(node));
  return inverted;
}

}  // namespace quire::text::jinja
