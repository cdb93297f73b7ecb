// The tree walker: one object renders one template once. Every operation on values that a template can reach goes
// through it, because every one of them can fail and costs steps, memory and time.
//
// Errors: the first failure is kept (status()); after it every operation returns undefined at once and every loop ends,
// so that callers need not look after each step.
#pragma once

#include <chrono>
#include <ctime>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "text/chat_template.h"
#include "text/jinja_ast.h"
#include "text/jinja_builtins.h"
#include "text/jinja_value.h"

namespace quire::text::jinja {

// Variables of one level of a template: a loop's pass, a macro's call, a block. The top level is the null pointer.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<NameId, Value>> variables;
};

struct MacroObject : Object {
  const MacroSyntax* syntax = nullptr;
  std::shared_ptr<Scope> closure;
};

struct BoundMethodObject : Object {
  Value self;
  const BuiltinEntry* method = nullptr;
};

struct FunctionObject : Object {
  const BuiltinEntry* function = nullptr;
};

// One run over an iterable.
class Iteration {
 public:
  explicit Iteration(Value iterable) : iterable_(std::move(iterable)) {}
  // False at the end.
  bool next(class Interpreter& interpreter, Value& item);

 private:
  Value iterable_;
  size_t position_ = 0;
  size_t byte_ = 0;  // of a string
};

// {% for %}'s "loop". Looks ahead only when a template asks for what needs it, since the loop's filter may depend on
// what its body does.
struct LoopObject : Object {
  std::function<bool(Value&)> fetch;  // the next item that passes the filter
  Values ahead;                       // fetched before their turn
  size_t ahead_begin = 0;
  int64_t index0 = -1;
  int64_t length = -1;  // once known
  int64_t depth0 = 0;
  Value previous = Value::missing();
  Value current = Value::missing();
  Value last_changed = Value::missing();
  const Statement* recursive = nullptr;
  std::shared_ptr<Scope> outer;
  bool finished = false;  // the loop is over; nothing can be fetched any more
};

class Interpreter {
 public:
  Interpreter(const Syntax& syntax, const TemplateLimits& limits, const boost::json::object& variables,
              const boost::json::object& trusted, const std::tm& local_time);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<std::vector<TextPiece>> render();

  // Failures and limits.
  bool ok() const { return status_.ok(); }
  // invalid_argument with the line that is being evaluated. Returns undefined.
  template <typename... Args>
  Value fail(fmt::format_string<Args...> format, Args&&... args) {
    return fail_with(StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
  }
  Value fail_with(StatusCode code, std::string_view message);
  // Counts work; false when the render is over.
  bool step(int64_t count = 1);
  // Whether `bytes` more may live; fails if not. Counts the work of touching them.
  bool reserve(int64_t bytes);
  // The same for a text of `size` bytes, in the making, that grows by `more`: the work is that of `more` alone.
  bool grow(size_t size, size_t more);
  // One level of the walker's own recursion more, through `function`.
  Value apply(const BuiltinEntry& builtin, const Value& self, const Arguments& arguments);

  // Making values.
  Value undefined(std::string hint = {});
  Value undefined_attribute(const Value& owner, const Value& name);
  Value string(Text text, bool markup = false);
  Value string(std::string_view text, bool trusted) { return string(Text(std::string(text), trusted)); }
  Value list(Values items) { return sequence(Kind::kList, std::move(items)); }
  Value tuple(Values items) { return sequence(Kind::kTuple, std::move(items)); }
  Value iterator(Values items, std::string_view type_name = "generator");
  Value dict(std::shared_ptr<DictObject> object);
  Value dict_view(const Value& dict, DictViewObject::Part part);
  Value make_namespace();
  template <typename T>
  Value object(Kind kind, std::shared_ptr<T> made) {
    if (!check_nesting(made->depth())) return undefined();
    made->charge(account_, sizeof(T));
    return Value(kind, std::move(made));
  }

  // Python's operations.
  bool truth(const Value& value);
  bool equal(const Value& a, const Value& b);
  bool identical(const Value& a, const Value& b);
  // a < b; fails for what has no order.
  bool less(const Value& a, const Value& b, std::string_view operation = "<");
  bool contains(const Value& container, const Value& item);
  // len(); nullopt (and no failure) for what has none.
  std::optional<int64_t> length(const Value& value);
  // All items; fails for what cannot be iterated.
  Values items(const Value& iterable);
  bool iterable(const Value& value);
  Text str(const Value& value);
  std::string repr(const Value& value);
  std::string print(const Value& value, const struct PrintStyle& style);
  Value attribute(const Value& owner, const Value& name);
  Value item(const Value& owner, const Value& key);
  Value slice(const Value& owner, const Value& start, const Value& stop, const Value& step);
  Value arithmetic(Operator op, const Value& a, const Value& b);
  Value negate(const Value& value);
  Value call(const Value& callee, const Arguments& arguments);
  // "%" on strings and str.format.
  Value format_percent(const Value& format, const Value& arguments, bool is_single);
  Value format_braces(const Value& format, const Arguments& arguments);
  // As Python's format(value, spec).
  Text format_value(const Value& value, const Text& spec);
  Value from_json(const boost::json::value& json, bool trusted, int depth = 0);
  Text escape(const Text& text);
  // "a.b.0" as filters' attribute arguments spell it.
  Value attribute_path(const Value& value, const Value& path, const Value& otherwise);
  // Items in order; `key` gives what to compare by. Stable.
  Values sorted(Values values, const std::function<Value(const Value&)>& key, bool reverse);

  Value loop_attribute(const Value& loop, std::string_view name, bool& found);
  bool loop_advance(LoopObject& loop, Value& item);
  const std::tm& local_time() const { return local_time_; }

 private:
  friend class Iteration;
  // Levels of the walker's own recursion for each level of nesting a template may have.
  static constexpr int kWalkerFactor = 6;
  enum class Flow { kNext, kBreak, kContinue };
  class Depth;  // one level of the walker's own recursion

  Value sequence(Kind kind, Values items);
  bool check_nesting(int depth);
  bool fits(int64_t bytes);

  // Statements.
  Flow run(const Body& body);
  Flow run(const Statement& statement);
  Flow run_if(const Statement& statement);
  Flow run_for(const Statement& statement);
  Flow run_loop(const Statement& statement, const Value& iterable, int64_t depth0);
  void run_set(const Statement& statement);
  void run_set_block(const Statement& statement);
  void run_macro(const Statement& statement);
  void run_call_block(const Statement& statement);
  void run_filter_block(const Statement& statement);
  Flow run_with(const Statement& statement);
  Flow run_in_new_scope(const Body& body);
  // What `produce` prints.
  Text capture(const std::function<void()>& produce);
  void emit(const Text& text);
  void emit(const Value& value);

  // Variables.
  Value lookup(NameId name);
  Value resolve_outside(NameId name);
  void assign(NameId name, Value value);
  void assign(const Expression& target, const Value& value);
  void push_scope();
  void pop_scope() { scope_ = scope_->parent; }

  // Expressions.
  Value evaluate(const Expression& expression);
  Value evaluate_in_depth(const Expression& expression);
  Value evaluate_compare(const Expression& expression);
  Value evaluate_conditional(const Expression& expression);
  Value evaluate_dict(const Expression& expression);
  Value evaluate_item(const Expression& expression);
  Value evaluate_concatenate(const Expression& expression);
  Value evaluate_filter(const Expression& expression, const Value* input);
  Value evaluate_test(const Expression& expression);
  Values evaluate_all(const std::vector<ExpressionPtr>& expressions);
  bool compare(Operator op, const Value& a, const Value& b);
  bool refuse_arguments();
  bool evaluate_arguments(const CallSyntax& call, Arguments& arguments);

  Value make_macro(const MacroSyntax& syntax);
  Value call_macro(const Value& macro, const Arguments& arguments);
  bool bind_macro(const MacroSyntax& syntax, const Arguments& arguments, Scope& scope);
  Value call_recursive_loop(const Value& loop, const Arguments& arguments);

  Value python_attribute(const Value& owner, std::string_view name, bool& found);
  Value bound_method(const Value& self, const BuiltinEntry* method);
  std::string undefined_message(const Value& value);
  Value integer_arithmetic(Operator op, int64_t a, int64_t b);
  Value real_arithmetic(Operator op, double a, double b);
  Value repeat(const Value& sequence, int64_t count);
  Value add(const Value& a, const Value& b);

  const Syntax& syntax_;
  const TemplateLimits& limits_;
  const boost::json::object& variables_;
  const boost::json::object& trusted_;
  const std::tm local_time_;

  Status status_;
  int32_t line_ = 1;
  int64_t steps_ = 0;
  int64_t next_clock_check_ = 0;
  std::chrono::steady_clock::time_point deadline_;
  int depth_ = 0;
  int call_depth_ = 0;

  MemoryAccount account_;  // outlives every value below
  Values top_level_;       // by NameId; missing: not looked up yet
  std::shared_ptr<Scope> scope_;
  Text* output_ = nullptr;
  // What could hold itself: kept to the end, then emptied, so that no cycle survives and no chain of them is destroyed
  // recursively.
  std::vector<std::shared_ptr<NamespaceObject>> namespaces_;
  std::vector<std::shared_ptr<MacroObject>> macros_;
  std::vector<std::shared_ptr<LoopObject>> loops_;
};

}  // namespace quire::text::jinja
