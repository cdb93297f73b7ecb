// The tree of a parsed template. Immutable after parsing; rendered by any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/jinja_value.h"

namespace quire::text::jinja {

using NameId = int32_t;  // an interned variable name
struct BuiltinEntry;     // a filter or test, jinja_builtins.h

enum class ExpressionKind : uint8_t {
  kConstant,
  kName,
  kNamespaceTarget,  // name.text, as the target of a set
  kTuple,
  kList,
  kDict,       // children: key, value, key, value...
  kAttribute,  // child.text
  kItem,       // child[child]
  kSlice,      // only as the second child of kItem; children: start, stop, step (null when absent)
  kCall,
  kFilter,  // first child null inside a filter block
  kTest,
  kNot,
  kNegate,
  kPositive,
  kArithmetic,  // left to right: children[0] op[0] children[1] op[1] ...
  kConcatenate,
  kCompare,  // chained: children[0] op[0] children[1] ...
  kAnd,
  kOr,
  kConditional,  // children: test, then, else (null when absent)
};

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallSyntax {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> keyword;
  ExpressionPtr star;         // *args
  ExpressionPtr double_star;  // **kwargs
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kConstant;
  int32_t line = 1;
  int32_t depth = 1;  // of the tree below
  NameId name = -1;
  Value constant;    // kConstant; of kAttribute the attribute's name
  std::string text;  // attribute, filter or test name
  std::vector<ExpressionPtr> children;
  std::vector<Operator> operators;
  std::unique_ptr<CallSyntax> call;
  const BuiltinEntry* builtin = nullptr;  // null: unknown, an error when it is reached
};

enum class StatementKind : uint8_t {
  kData,
  kPrint,
  kIf,        // expressions: tests; bodies: one a test, and one more for else
  kFor,       // expressions: target, iterable, filter (may be null); bodies: loop, else
  kSet,       // expressions: target, value
  kSetBlock,  // expressions: target, filter (may be null)
  kMacro,
  kCallBlock,    // expressions: the call; macro: the caller
  kFilterBlock,  // expressions: the filter
  kWith,         // expressions: target, value, target, value ...
  kScope,        // generation, block: transparent, with a scope of its own
  kBreak,
  kContinue,
};

struct Statement;
using StatementPtr = std::unique_ptr<Statement>;
using Body = std::vector<StatementPtr>;

struct MacroSyntax {
  std::string name;
  std::vector<NameId> parameters;
  std::vector<std::string> parameter_names;
  std::vector<ExpressionPtr> defaults;  // of the last parameters
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  int32_t line = 1;
  bool recursive = false;  // kFor
  std::string text;        // kData
  NameId name = -1;        // kMacro
  std::vector<ExpressionPtr> expressions;
  std::vector<Body> bodies;
  std::unique_ptr<MacroSyntax> macro;
};

// Names every template knows where to find.
struct KnownNames {
  NameId loop, caller, varargs, kwargs;
};

struct Syntax {
  Body body;
  std::vector<std::string> names;  // by NameId
  KnownNames known{};
};

}  // namespace quire::text::jinja
