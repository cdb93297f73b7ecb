#include "text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"
#include "text/jinja_parser_expressions.h"

namespace quire::text::jinja {
namespace {

class StatementParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Result<Syntax> run() {
    Syntax syntax;
    syntax.known = {intern("loop"), intern("caller"), intern("varargs"), intern("kwargs")};
    syntax.body = parse_body({});
    if (status().ok() && !unknown_builtins().empty()) fail_unknown(unknown_builtins().front());
    if (!status().ok()) return status();
    syntax.names = take_names();
    return syntax;
  }

 private:
  // Statements until one of `ends` (whose name is then the current token) or the end of the template.
  Body parse_body(std::initializer_list<std::string_view> ends) {
    Body body;
    const Nesting nesting(*this);
    if (!nesting.ok()) return body;
    while (status().ok() && !at(TokenKind::kEnd)) {
      const Token token = current();
      if (token.kind == TokenKind::kData) {
        StatementPtr data = make(StatementKind::kData, token.line);
        data->text = token.text;
        advance();
        body.push_back(std::move(data));
      } else if (token.kind == TokenKind::kVariableBegin) {
        advance();
        StatementPtr print = make(StatementKind::kPrint, token.line);
        print->expressions.push_back(parse_tuple({}));
        expect(TokenKind::kVariableEnd, "end of print statement");
        body.push_back(std::move(print));
      } else {
        expect(TokenKind::kBlockBegin, "a tag");
        if (at(TokenKind::kName) && std::find(ends.begin(), ends.end(), current().text) != ends.end()) return body;
        if (StatementPtr statement = parse_statement(ends)) body.push_back(std::move(statement));
        expect(TokenKind::kBlockEnd, "end of statement block");
      }
    }
    if (status().ok() && ends.size() > 0) {
      fail(fmt::format("Unexpected end of template. Jinja was looking for the following tags: '{}'.",
                       fmt::join(ends, "' or '")));
    }
    return body;
  }

  // The body of a statement, from the end of its tag.
  Body parse_block(std::initializer_list<std::string_view> ends) {
    skip_operator(":");
    expect(TokenKind::kBlockEnd, "end of statement block");
    return parse_body(ends);
  }
  // One that ends with `end`.
  Body parse_whole_block(std::string_view end) {
    Body body = parse_block({end});
    advance();
    return body;
  }

  // A scope that Jinja compiles on its own: unknown filters inside are errors even if never reached.
  template <typename Parse>
  void in_hard_scope(Parse parse_it) {
    const size_t mark = unknown_builtins().size();
    parse_it();
    for (size_t i = mark; i < unknown_builtins().size(); ++i) unknown_builtins()[i].hard = true;
  }

  StatementPtr parse_statement(std::initializer_list<std::string_view> ends) {
    const Token token = current();
    if (token.kind != TokenKind::kName) return fail("tag name expected"), nullptr;
    const std::string_view tag = token.text;
    if (tag == "if") return parse_if();
    if (tag == "for") return parse_for();
    if (tag == "set") return parse_set();
    if (tag == "macro") return parse_macro();
    if (tag == "call") return parse_call_block();
    if (tag == "filter") return parse_filter_block();
    if (tag == "with") return parse_with();
    if (tag == "print") return parse_print();
    if (tag == "generation" || tag == "block" || tag == "autoescape") return parse_scope(tag);
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) return fail(fmt::format("'{}' outside of a loop", tag)), nullptr;
      advance();
      return make(tag == "break" ? StatementKind::kBreak : StatementKind::kContinue, token.line);
    }
    if (tag == "include" || tag == "import" || tag == "extends" || tag == "from") {
      return fail(fmt::format("a chat template cannot {} another template", tag)), nullptr;
    }
    std::string message = fmt::format("Encountered unknown tag '{}'.", tag);
    if (ends.size() > 0)
      message += fmt::format(" Jinja was looking for the following tags: '{}'.", fmt::join(ends, "' or '"));
    return fail(message), nullptr;
  }

  StatementPtr parse_if() {
    StatementPtr node = make(StatementKind::kIf, current().line);
    const size_t mark = unknown_builtins().size();
    for (bool more = true; more && status().ok();) {
      advance();  // if, elif
      node->expressions.push_back(parse_tuple({.conditional = false}));
      node->bodies.push_back(parse_block({"elif", "else", "endif"}));
      more = at_name("elif");
    }
    if (at_name("else")) {
      advance();
      node->bodies.push_back(parse_whole_block("endif"));
    } else {
      advance();
    }
    forgive_unknown_since(mark);
    return node;
  }

  StatementPtr parse_for() {
    StatementPtr node = make(StatementKind::kFor, current().line);
    in_hard_scope([&] {
      advance();
      ExpressionPtr target = parse_target({.end = "in"});
      expect_name("in");
      ExpressionPtr iterable = parse_tuple({.conditional = false, .end = "recursive"});
      ExpressionPtr filter;
      if (skip_name("if")) filter = parse_expression();
      node->recursive = skip_name("recursive");
      node->expressions.push_back(std::move(target));
      node->expressions.push_back(std::move(iterable));
      node->expressions.push_back(std::move(filter));
      ++loop_depth_;
      node->bodies.push_back(parse_block({"endfor", "else"}));
      --loop_depth_;
      const bool has_else = at_name("else");
      advance();
      node->bodies.push_back(has_else ? parse_whole_block("endfor") : Body());
    });
    return node;
  }

  StatementPtr parse_set() {
    const int32_t line = current().line;
    advance();
    ExpressionPtr target = parse_target({.namespaces = true});
    if (skip_operator("=")) {
      StatementPtr node = make(StatementKind::kSet, line);
      node->expressions.push_back(std::move(target));
      node->expressions.push_back(parse_tuple({}));
      return node;
    }
    StatementPtr node = make(StatementKind::kSetBlock, line);
    in_hard_scope([&] {
      node->expressions.push_back(std::move(target));
      node->expressions.push_back(parse_filters(nullptr));
      node->bodies.push_back(parse_whole_block("endset"));
    });
    return node;
  }

  void parse_signature(MacroSyntax& macro) {
    expect_operator("(");
    while (status().ok() && !at_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      if (at_operator(")")) break;
      const Token name = current();
      expect(TokenKind::kName, "a parameter name");
      count_node();
      macro.parameters.push_back(intern(name.text));
      macro.parameter_names.emplace_back(name.text);
      if (skip_operator("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        fail("non-default argument follows default argument");
      }
    }
    expect_operator(")");
  }

  void parse_macro_body(MacroSyntax& macro, std::string_view end) {
    const int outer_loops = std::exchange(loop_depth_, 0);
    const MacroScope scope(*this, macro);
    macro.body = parse_whole_block(end);
    loop_depth_ = outer_loops;
  }

  StatementPtr parse_macro() {
    StatementPtr node = make(StatementKind::kMacro, current().line);
    in_hard_scope([&] {
      advance();
      const Token name = current();
      expect(TokenKind::kName, "a macro name");
      node->name = intern(name.text);
      node->macro = std::make_unique<MacroSyntax>();
      node->macro->name = name.text;
      parse_signature(*node->macro);
      parse_macro_body(*node->macro, "endmacro");
    });
    return node;
  }

  StatementPtr parse_call_block() {
    StatementPtr node = make(StatementKind::kCallBlock, current().line);
    in_hard_scope([&] {
      advance();
      node->macro = std::make_unique<MacroSyntax>();
      node->macro->name = "caller";
      if (at_operator("(")) parse_signature(*node->macro);
      node->expressions.push_back(parse_expression());
      if (status().ok() && node->expressions[0]->kind != ExpressionKind::kCall) fail("expected call");
      parse_macro_body(*node->macro, "endcall");
    });
    return node;
  }

  StatementPtr parse_filter_block() {
    StatementPtr node = make(StatementKind::kFilterBlock, current().line);
    in_hard_scope([&] {
      advance();
      ExpressionPtr first = parse_filter(nullptr);
      node->expressions.push_back(parse_filters(std::move(first)));
      node->bodies.push_back(parse_whole_block("endfilter"));
    });
    return node;
  }

  StatementPtr parse_with() {
    StatementPtr node = make(StatementKind::kWith, current().line);
    in_hard_scope([&] {
      advance();
      while (status().ok() && !at(TokenKind::kBlockEnd)) {
        if (!node->expressions.empty()) expect_operator(",");
        node->expressions.push_back(parse_target({}));
        expect_operator("=");
        node->expressions.push_back(parse_expression());
      }
      node->bodies.push_back(parse_whole_block("endwith"));
    });
    return node;
  }

  StatementPtr parse_print() {
    StatementPtr node = make(StatementKind::kPrint, current().line);
    advance();
    while (status().ok() && !at(TokenKind::kBlockEnd)) {
      if (!node->expressions.empty()) expect_operator(",");
      node->expressions.push_back(parse_expression());
    }
    return node;
  }

  StatementPtr parse_scope(std::string_view tag) {
    StatementPtr node = make(StatementKind::kScope, current().line);
    in_hard_scope([&] {
      advance();
      std::string_view block_name;
      if (tag == "autoescape") {
        const Token setting = current();
        if (setting.text != "false" && setting.text != "False") return fail("autoescape can only be false");
        advance();
      } else if (tag == "block") {
        block_name = current().text;
        expect(TokenKind::kName, "a block name");
        skip_name("scoped");
        skip_name("required");
      }
      const int outer_loops = std::exchange(loop_depth_, tag == "autoescape" ? loop_depth_ : 0);
      node->bodies.push_back(parse_whole_block(tag == "generation" ? "endgeneration"
                                               : tag == "block"    ? "endblock"
                                                                   : "endautoescape"));
      loop_depth_ = outer_loops;
      if (!block_name.empty()) skip_name(block_name);
    });
    return node;
  }

  StatementPtr make(StatementKind kind, int32_t line) {
    count_node();
    auto node = std::make_unique<Statement>();
    node->kind = kind;
    node->line = line;
    return node;
  }

  int loop_depth_ = 0;
};

}  // namespace

Result<Syntax> parse(std::string_view source, int max_depth) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Token> tokens, tokenize(source));
  return StatementParser(tokens, max_depth).run();
}

}  // namespace quire::text::jinja
