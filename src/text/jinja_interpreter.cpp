#include "text/jinja_interpreter.h"

#include <algorithm>

namespace quire::text::jinja {
namespace {

constexpr int64_t kStepsBetweenClockChecks = 1024;
constexpr int64_t kBytesPerStep = 256;
// Containers nest at most so deep: walking them (printing, comparing, freeing) recurses.
constexpr int kMaxContainerDepth = 200;

}  // namespace

class Interpreter::Depth {
 public:
  explicit Depth(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter.depth_ > kWalkerFactor * interpreter.limits_.max_depth) {
      interpreter.fail_with(StatusCode::kResourceExhausted, "evaluation is nested too deeply");
    }
  }
  ~Depth() { --interpreter_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Interpreter& interpreter_;
};

Interpreter::Interpreter(const Syntax& syntax, const TemplateLimits& limits, const boost::json::object& variables,
                         const boost::json::object& trusted, const std::tm& local_time)
    : syntax_(syntax),
      limits_(limits),
      variables_(variables),
      trusted_(trusted),
      local_time_(local_time),
      deadline_(std::chrono::steady_clock::now() + limits.max_time),
      top_level_(syntax.names.size(), Value::missing()) {}

Interpreter::~Interpreter() {
  for (const auto& made : namespaces_) made->attributes.clear();
  for (const auto& macro : macros_) macro->closure.reset();
  for (const auto& loop : loops_) {
    loop->fetch = nullptr;
    loop->ahead.clear();
    loop->previous = loop->current = loop->last_changed = Value::none();
    loop->outer.reset();
  }
}

Result<std::vector<TextPiece>> Interpreter::render() {
  Text output;
  output_ = &output;
  run(syntax_.body);
  output_ = nullptr;
  if (!status_.ok()) return status_;
  std::vector<TextPiece> pieces;
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = output.run_end(begin);
    pieces.push_back({output.bytes().substr(begin, end - begin), output.trusted_at(begin)});
    begin = end;
  }
  return pieces;
}

Value Interpreter::fail_with(StatusCode code, std::string_view message) {
  constexpr size_t kMostMessageBytes = 1000;  // it may quote a user's text, which has any length
  if (status_.ok()) {
    const std::string_view shown = clip(message, kMostMessageBytes);
    status_ = Status(
        code, fmt::format("chat template, line {}: {}{}", line_, shown, shown.size() < message.size() ? "..." : ""));
  }
  return Value(Kind::kUndefined, std::make_shared<UndefinedObject>());
}

bool Interpreter::step(int64_t count) {
  if (!status_.ok()) return false;
  steps_ += count;
  if (steps_ > limits_.max_steps) {
    fail_with(StatusCode::kResourceExhausted, fmt::format("took more than {} steps", limits_.max_steps));
    return false;
  }
  if (steps_ >= next_clock_check_) {
    next_clock_check_ = steps_ + kStepsBetweenClockChecks;
    if (std::chrono::steady_clock::now() > deadline_) {
      fail_with(StatusCode::kResourceExhausted, fmt::format("took longer than {} ms", limits_.max_time.count()));
      return false;
    }
  }
  return true;
}

bool Interpreter::fits(int64_t bytes) {
  if (!status_.ok()) return false;
  if (bytes < 0 || bytes > limits_.max_output_bytes - account_.live) {
    fail_with(StatusCode::kResourceExhausted,
              fmt::format("needs more than {} bytes of text and values", limits_.max_output_bytes));
    return false;
  }
  return true;
}

bool Interpreter::reserve(int64_t bytes) {
  return fits(bytes) && step(bytes / kBytesPerStep);
}

bool Interpreter::grow(size_t size, size_t more) {
  return fits(static_cast<int64_t>(size + more)) && step(static_cast<int64_t>(more) / kBytesPerStep);
}

Value Interpreter::apply(const BuiltinEntry& builtin, const Value& self, const Arguments& arguments) {
  const Depth depth(*this);
  return ok() ? builtin.function(*this, self, arguments) : undefined();
}

bool Interpreter::check_nesting(int depth) {
  if (depth > kMaxContainerDepth) {
    fail_with(StatusCode::kResourceExhausted,
              fmt::format("a value is nested deeper than {} levels", kMaxContainerDepth));
  }
  return status_.ok();
}

Value Interpreter::undefined(std::string hint) {
  auto made = std::make_shared<UndefinedObject>();
  made->hint = std::move(hint);
  return Value(Kind::kUndefined, std::move(made));
}

Value Interpreter::undefined_attribute(const Value& owner, const Value& name) {
  auto made = std::make_shared<UndefinedObject>();
  made->owner_type = owner.is_none() ? "None" : std::string(type_name(owner)) + " object";
  made->name_is_string = name.is_string();
  made->name = name.is_string() ? std::string(clip(name.text().view(), 200)) : repr(name);
  return object(Kind::kUndefined, std::move(made));
}

std::string Interpreter::undefined_message(const Value& value) {
  const auto& info = value.object<UndefinedObject>();
  if (!info.hint.empty()) return info.hint;
  if (info.owner_type.empty()) return fmt::format("'{}' is undefined", info.name);
  if (!info.name_is_string) return fmt::format("{} has no element {}", info.owner_type, info.name);
  return fmt::format("'{}' has no attribute '{}'", info.owner_type, info.name);
}

Value Interpreter::string(Text text, bool markup) {
  const auto bytes = static_cast<int64_t>(sizeof(StringObject) + text.bytes().capacity() + text.overhead_bytes());
  if (!reserve(bytes)) return undefined();
  auto made = std::make_shared<StringObject>(std::move(text), markup);
  made->charge(account_, bytes);
  return Value(Kind::kString, std::move(made));
}

Value Interpreter::sequence(Kind kind, Values items) {
  const auto bytes = static_cast<int64_t>(sizeof(SequenceObject) + items.capacity() * sizeof(Value));
  auto made = std::make_shared<SequenceObject>();
  for (const Value& item : items) made->note_depth_of(item);
  made->items = std::move(items);
  if (!check_nesting(made->depth()) || !reserve(bytes)) return undefined();
  made->charge(account_, bytes);
  return Value(kind, std::move(made));
}

Value Interpreter::iterator(Values items, std::string_view type_name) {
  const auto bytes = static_cast<int64_t>(sizeof(IteratorObject) + items.capacity() * sizeof(Value));
  auto made = std::make_shared<IteratorObject>();
  for (const Value& item : items) made->note_depth_of(item);
  made->items = std::move(items);
  made->type_name = type_name;
  if (!check_nesting(made->depth()) || !reserve(bytes)) return undefined();
  made->charge(account_, bytes);
  return Value(Kind::kIterator, std::move(made));
}

Value Interpreter::dict(std::shared_ptr<DictObject> made) {
  const auto bytes = static_cast<int64_t>(sizeof(DictObject) + made->entries.size() * 4 * sizeof(Value));
  if (!check_nesting(made->depth()) || !reserve(bytes)) return undefined();
  made->charge(account_, bytes);
  return Value(Kind::kDict, std::move(made));
}

Value Interpreter::dict_view(const Value& dict_value, DictViewObject::Part part) {
  auto made = std::make_shared<DictViewObject>();
  made->part = part;
  made->dict = dict_value;
  for (const auto& [key, value] : dict_value.dict().entries) {
    if (!step()) return undefined();
    made->items.push_back(part == DictViewObject::Part::kKeys     ? key
                          : part == DictViewObject::Part::kValues ? value
                                                                  : tuple({key, value}));
    made->note_depth_of(made->items.back());
  }
  made->note_depth_of(dict_value);
  if (!check_nesting(made->depth())) return undefined();
  made->charge(account_, static_cast<int64_t>(sizeof(DictViewObject) + made->items.size() * sizeof(Value)));
  return Value(Kind::kDictView, std::move(made));
}

Value Interpreter::make_namespace() {
  if (!reserve(256)) return undefined();
  auto made = std::make_shared<NamespaceObject>();
  made->charge(account_, 256);
  namespaces_.push_back(made);
  return Value(Kind::kNamespace, std::move(made));
}

// Statements.

Interpreter::Flow Interpreter::run(const Body& body) {
  const Depth depth(*this);
  for (const StatementPtr& statement : body) {
    if (!step()) break;
    line_ = statement->line;
    const Flow flow = run(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run(const Statement& statement) {
  switch (statement.kind) {
    case StatementKind::kData:
      if (reserve(static_cast<int64_t>(statement.text.size()))) {
        account_.live += static_cast<int64_t>(statement.text.size());
        output_->append(statement.text, true);
      }
      break;
    case StatementKind::kPrint:
      for (const ExpressionPtr& expression : statement.expressions) emit(evaluate(*expression));
      break;
    case StatementKind::kIf:
      return run_if(statement);
    case StatementKind::kFor:
      return run_for(statement);
    case StatementKind::kSet:
      run_set(statement);
      break;
    case StatementKind::kSetBlock:
      run_set_block(statement);
      break;
    case StatementKind::kMacro:
      run_macro(statement);
      break;
    case StatementKind::kCallBlock:
      run_call_block(statement);
      break;
    case StatementKind::kFilterBlock:
      run_filter_block(statement);
      break;
    case StatementKind::kWith:
      return run_with(statement);
    case StatementKind::kScope:
      return run_in_new_scope(statement.bodies[0]);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_if(const Statement& statement) {
  for (size_t i = 0; i < statement.expressions.size(); ++i) {
    if (truth(evaluate(*statement.expressions[i]))) return run(statement.bodies[i]);
    if (!ok()) return Flow::kNext;
  }
  if (statement.bodies.size() > statement.expressions.size()) return run(statement.bodies.back());
  return Flow::kNext;
}

Interpreter::Flow Interpreter::run_for(const Statement& statement) {
  return run_loop(statement, evaluate(*statement.expressions[1]), 0);
}

Interpreter::Flow Interpreter::run_loop(const Statement& statement, const Value& iterable_value, int64_t depth0) {
  if (!ok()) return Flow::kNext;
  if (!iterable(iterable_value)) {
    fail("'{}' object is not iterable", type_name(iterable_value));
    return Flow::kNext;
  }
  if (!reserve(512)) return Flow::kNext;
  const Expression& target = *statement.expressions[0];
  const Expression* filter = statement.expressions[2].get();
  const std::shared_ptr<Scope> outer = scope_;

  auto loop = std::make_shared<LoopObject>();
  loop->charge(account_, 512);
  loop->depth0 = depth0;
  loop->outer = outer;
  if (statement.recursive) loop->recursive = &statement;
  if (filter == nullptr) loop->length = length(iterable_value).value_or(-1);
  auto iteration = std::make_shared<Iteration>(iterable_value);
  loop->fetch = [this, iteration, filter, &target, outer](Value& item) {
    while (iteration->next(*this, item)) {
      if (filter == nullptr) return true;
      const std::shared_ptr<Scope> saved = std::exchange(scope_, std::make_shared<Scope>(Scope{outer, {}}));
      assign(target, item);
      const bool passes = truth(evaluate(*filter));
      scope_ = saved;
      if (passes) return ok();
    }
    return false;
  };
  const Value loop_value(Kind::kLoop, loop);
  Value item;
  bool any = false;
  while (step() && loop_advance(*loop, item)) {
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    scope_->variables.emplace_back(syntax_.known.loop, loop_value);
    assign(target, item);
    const Flow flow = run(statement.bodies[0]);
    if (flow == Flow::kBreak) break;
    // As Jinja has it: what is left early does not count.
    any = any || flow == Flow::kNext;
  }
  loop->finished = true;
  loop->fetch = nullptr;
  scope_ = outer;                                    // lets go of the last pass, which holds the loop
  if (loop.use_count() > 2) loops_.push_back(loop);  // beside `loop` and `loop_value`: a template kept it
  if (!any && ok()) {
    push_scope();
    const Flow flow = run(statement.bodies[1]);
    scope_ = outer;
    return flow;
  }
  return Flow::kNext;
}

bool Interpreter::loop_advance(LoopObject& loop, Value& item) {
  if (loop.ahead_begin < loop.ahead.size()) {
    item = std::move(loop.ahead[loop.ahead_begin++]);
    if (loop.ahead_begin == loop.ahead.size()) {
      loop.ahead.clear();
      loop.ahead_begin = 0;
    }
  } else if (loop.finished || !loop.fetch || !loop.fetch(item)) {
    return false;
  }
  ++loop.index0;
  loop.previous = std::move(loop.current);
  loop.current = item;
  return ok();
}

Value Interpreter::loop_attribute(const Value& value, std::string_view name, bool& found) {
  auto& loop = value.object<LoopObject>();
  const auto peek = [&]() -> bool {
    if (loop.ahead_begin < loop.ahead.size()) return true;
    Value item;
    if (loop.finished || !loop.fetch || !loop.fetch(item)) return false;
    loop.ahead.push_back(std::move(item));
    return true;
  };
  const auto total = [&]() -> int64_t {
    if (loop.length >= 0) return loop.length;
    Value item;
    while (!loop.finished && loop.fetch && step() && loop.fetch(item)) loop.ahead.push_back(std::move(item));
    loop.length = loop.index0 + 1 + static_cast<int64_t>(loop.ahead.size() - loop.ahead_begin);
    return loop.length;
  };
  found = true;
  if (name == "index") return Value::integer(loop.index0 + 1);
  if (name == "index0") return Value::integer(loop.index0);
  if (name == "first") return Value::boolean(loop.index0 == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return Value::integer(total());
  if (name == "revindex") return Value::integer(total() - loop.index0);
  if (name == "revindex0") return Value::integer(total() - loop.index0 - 1);
  if (name == "depth") return Value::integer(loop.depth0 + 1);
  if (name == "depth0") return Value::integer(loop.depth0);
  if (name == "previtem") return loop.index0 == 0 ? undefined("there is no previous item") : loop.previous;
  if (name == "nextitem") return peek() ? loop.ahead[loop.ahead_begin] : undefined("there is no next item");
  if (name == "cycle") {
    static constexpr BuiltinEntry kCycle{
        "cycle", [](Interpreter& in, const Value& self, const Arguments& arguments) {
          if (arguments.positional.empty()) return in.fail("no items for cycling given");
          const auto index = static_cast<size_t>(std::max<int64_t>(self.object<LoopObject>().index0, 0));
          return arguments.positional[index % arguments.positional.size()];
        }};
    return bound_method(value, &kCycle);
  }
  if (name == "changed") {
    static constexpr BuiltinEntry kChanged{
        "changed", [](Interpreter& in, const Value& self, const Arguments& arguments) {
          auto& changed_loop = self.object<LoopObject>();
          Value now = in.tuple(arguments.positional);
          const bool changed = changed_loop.last_changed.is_missing() || !in.equal(changed_loop.last_changed, now);
          changed_loop.last_changed = std::move(now);
          return Value::boolean(changed);
        }};
    return bound_method(value, &kChanged);
  }
  found = false;
  return Value::none();
}

void Interpreter::run_set(const Statement& statement) {
  assign(*statement.expressions[0], evaluate(*statement.expressions[1]));
}

void Interpreter::run_set_block(const Statement& statement) {
  push_scope();
  Text text = capture([&] { run(statement.bodies[0]); });
  pop_scope();
  Value value = string(std::move(text));
  if (statement.expressions[1] != nullptr) value = evaluate_filter(*statement.expressions[1], &value);
  assign(*statement.expressions[0], value);
}

Value Interpreter::make_macro(const MacroSyntax& syntax) {
  if (!reserve(512)) return undefined();
  auto macro = std::make_shared<MacroObject>();
  macro->charge(account_, 512);
  macro->syntax = &syntax;
  macro->closure = scope_;
  macros_.push_back(macro);
  return Value(Kind::kMacro, std::move(macro));
}

void Interpreter::run_macro(const Statement& statement) {
  assign(statement.name, make_macro(*statement.macro));
}

void Interpreter::run_call_block(const Statement& statement) {
  const Expression& call_expression = *statement.expressions[0];
  const Value caller = make_macro(*statement.macro);
  const Value callee = evaluate(*call_expression.children[0]);
  Arguments arguments;
  if (!evaluate_arguments(*call_expression.call, arguments)) return;
  arguments.keyword.push_back({"caller", caller});
  emit(call(callee, arguments));
}

void Interpreter::run_filter_block(const Statement& statement) {
  push_scope();
  const Value text = string(capture([&] { run(statement.bodies[0]); }));
  emit(evaluate_filter(*statement.expressions[0], &text));
  pop_scope();
}

Interpreter::Flow Interpreter::run_with(const Statement& statement) {
  auto inner = std::make_shared<Scope>(Scope{scope_, {}});
  Values values;
  for (size_t i = 1; i < statement.expressions.size(); i += 2) values.push_back(evaluate(*statement.expressions[i]));
  scope_ = inner;
  for (size_t i = 0; i < values.size(); ++i) assign(*statement.expressions[2 * i], values[i]);
  const Flow flow = run(statement.bodies[0]);
  scope_ = inner->parent;
  return flow;
}

Interpreter::Flow Interpreter::run_in_new_scope(const Body& body) {
  push_scope();
  const Flow flow = run(body);
  pop_scope();
  return flow;
}

Text Interpreter::capture(const std::function<void()>& produce) {
  Text text;
  Text* outer = std::exchange(output_, &text);
  produce();
  output_ = outer;
  account_.live -= static_cast<int64_t>(text.size());
  return text;
}

void Interpreter::emit(const Text& text) {
  if (!reserve(static_cast<int64_t>(text.size()))) return;
  account_.live += static_cast<int64_t>(text.size());
  output_->append(text);
}

void Interpreter::emit(const Value& value) {
  if (value.is_string()) {
    emit(value.text());
  } else if (ok()) {
    emit(str(value));
  }
}

// Variables.

Value Interpreter::lookup(NameId name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [id, value] : scope->variables) {
      if (id == name) return value;
    }
  }
  Value& slot = top_level_[static_cast<size_t>(name)];
  if (slot.is_missing()) slot = resolve_outside(name);
  return slot;
}

Value Interpreter::resolve_outside(NameId id) {
  const std::string& name = syntax_.names[static_cast<size_t>(id)];
  if (const auto* value = trusted_.if_contains(name)) return from_json(*value, true);
  if (const auto* value = variables_.if_contains(name)) return from_json(*value, false);
  if (const BuiltinEntry* entry = find_function(name)) {
    auto made = std::make_shared<FunctionObject>();
    made->function = entry;
    return Value(Kind::kFunction, std::move(made));
  }
  auto made = std::make_shared<UndefinedObject>();
  made->name = name;
  return Value(Kind::kUndefined, std::move(made));
}

void Interpreter::assign(NameId name, Value value) {
  if (!ok()) return;
  if (scope_ == nullptr) {
    top_level_[static_cast<size_t>(name)] = std::move(value);
    return;
  }
  for (auto& [id, present] : scope_->variables) {
    if (id == name) {
      present = std::move(value);
      return;
    }
  }
  scope_->variables.emplace_back(name, std::move(value));
}

void Interpreter::assign(const Expression& target, const Value& value) {
  if (!ok()) return;
  if (target.kind == ExpressionKind::kName) return assign(target.name, value);
  if (target.kind == ExpressionKind::kNamespaceTarget) {
    const Value owner = lookup(target.name);
    if (!owner.is(Kind::kNamespace)) {
      fail("cannot assign attribute on non-namespace object");
      return;
    }
    auto& space = owner.object<NamespaceObject>();
    if (space.attributes.insert_or_assign(target.text, value).second) {
      if (!reserve(128)) return;
      space.charge(account_, 128);
      space.order.push_back(target.text);
    }
    return;
  }
  const Values parts = items(value);
  if (!ok()) return;
  if (parts.size() != target.children.size()) {
    fail("{} (expected {}{})",
         parts.size() < target.children.size() ? "not enough values to unpack" : "too many values to unpack",
         target.children.size(), parts.size() < target.children.size() ? fmt::format(", got {}", parts.size()) : "");
    return;
  }
  for (size_t i = 0; i < parts.size(); ++i) assign(*target.children[i], parts[i]);
}

void Interpreter::push_scope() {
  scope_ = std::make_shared<Scope>(Scope{scope_, {}});
}

}  // namespace quire::text::jinja
