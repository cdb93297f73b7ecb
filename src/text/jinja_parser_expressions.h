// The half of the parser that reads expressions, and the token handling both halves share. The first error stays; after
// it the parser stands at the end of the template, so every loop ends.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace quire::text::jinja {

class ExpressionParser {
 public:
  // `tokens` must outlive it and end with kEnd.
  ExpressionParser(const std::vector<Token>& tokens, int max_depth) : tokens_(tokens), max_depth_(max_depth) {}

 protected:
  struct TupleOptions {
    bool conditional = true;    // may a bare "x if y" stand here
    std::string_view end = {};  // a name that also ends it
    bool parentheses = false;   // inside explicit ones: may be empty
    bool namespaces = false;    // targets: may be "name.attribute"
    bool target = false;        // names and literals only
  };
  struct UnknownBuiltin {
    std::string message;
    int32_t line;
    bool hard;  // an error even where it is never reached
  };

  // One level of nesting while it lives.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;
    bool ok() const { return ok_; }

   private:
    ExpressionParser& parser_;
    bool ok_;
  };
  // Within it, names like caller are noted on the macro.
  class MacroScope {
   public:
    MacroScope(ExpressionParser& parser, MacroSyntax& macro) : parser_(parser) { parser.macros_.push_back(&macro); }
    ~MacroScope() { parser_.macros_.pop_back(); }
    MacroScope(const MacroScope&) = delete;
    MacroScope& operator=(const MacroScope&) = delete;

   private:
    ExpressionParser& parser_;
  };

  ExpressionPtr parse_expression();
  ExpressionPtr parse_tuple(TupleOptions options);
  ExpressionPtr parse_target(TupleOptions options);
  // One filter after its "|", and a chain of "| filter"; null stays null.
  ExpressionPtr parse_filter(ExpressionPtr value);
  ExpressionPtr parse_filters(ExpressionPtr value);

  const Token& current() const { return tokens_[position_]; }
  const Token& look_ahead() const { return tokens_[std::min(position_ + 1, tokens_.size() - 1)]; }
  void advance() {
    if (position_ + 1 < tokens_.size()) ++position_;
  }
  bool at(TokenKind kind) const { return current().kind == kind; }
  bool at_operator(std::string_view text) const { return at(TokenKind::kOperator) && current().text == text; }
  bool at_name(std::string_view text) const { return at(TokenKind::kName) && current().text == text; }
  bool skip_operator(std::string_view text);
  bool skip_name(std::string_view text);
  void expect(TokenKind kind, std::string_view what);
  void expect_operator(std::string_view text);
  void expect_name(std::string_view text);

  void fail(std::string_view message);
  void fail_unknown(const UnknownBuiltin& unknown);
  const Status& status() const { return status_; }
  NameId intern(std::string_view name);
  std::vector<std::string> take_names() { return std::move(names_); }
  std::vector<UnknownBuiltin>& unknown_builtins() { return unknown_; }
  // Code that may never be reached may name filters that do not exist.
  void forgive_unknown_since(size_t mark);
  void count_node();

 private:
  ExpressionPtr make(ExpressionKind kind, int32_t line);
  // Adopts a child; the tree may not become too deep.
  void adopt(Expression& parent, ExpressionPtr child);
  ExpressionPtr parse_conditional();
  ExpressionPtr parse_or();
  ExpressionPtr parse_and();
  ExpressionPtr parse_not();
  ExpressionPtr parse_compare();
  ExpressionPtr parse_sum();
  ExpressionPtr parse_concatenation();
  ExpressionPtr parse_product();
  ExpressionPtr parse_power();
  ExpressionPtr parse_unary(bool with_filter);
  ExpressionPtr parse_primary(bool namespaces);
  ExpressionPtr parse_name(bool namespaces);
  ExpressionPtr parse_number();
  ExpressionPtr parse_strings();
  ExpressionPtr parse_list();
  ExpressionPtr parse_dict();
  ExpressionPtr parse_postfix(ExpressionPtr node);
  ExpressionPtr parse_subscript(ExpressionPtr node);
  ExpressionPtr parse_subscript_argument();
  ExpressionPtr parse_call(ExpressionPtr node);
  ExpressionPtr parse_test(ExpressionPtr node);
  std::unique_ptr<CallSyntax> parse_call_arguments();
  std::string parse_dotted_name();
  using Rule = ExpressionPtr (ExpressionParser::*)();
  // operand (op operand)*, kept flat.
  ExpressionPtr parse_chain(ExpressionKind kind, Rule operand,
                            std::initializer_list<std::pair<std::string_view, Operator>> operators);

  const std::vector<Token>& tokens_;
  const int max_depth_;
  size_t position_ = 0;
  int depth_ = 0;
  int64_t num_nodes_ = 0;
  Status status_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, NameId> name_ids_;
  std::vector<MacroSyntax*> macros_;
  std::vector<UnknownBuiltin> unknown_;
};

}  // namespace quire::text::jinja
