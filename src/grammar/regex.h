// Regular expressions as requests write them (ECMA-262's, without what is not regular), read into a tree. Two things
// are made of a tree: the grammar's own notation, and a check whether a text matches. Both mean the whole text; where
// dialects differ (what \s, \d and a dot stand for), a class is the narrower of ECMA-262's and Python's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/check.h"
#include "grammar/code_points.h"

namespace quire::grammar {

class Regex {
 public:
  // Errors: invalid_argument naming what is not understood, or that the expression is too large.
  static Result<Regex> parse(std::string_view pattern, const GrammarLimits& limits);

  // Without these characters: of the texts that match, those that have none of them.
  Regex without(const CodePoints& set) const;

  // An expression in parentheses for texts all of which match.
  std::string ebnf(Spelling spelling) const;
  // The same for those of at least and at most so many characters (-1: any number), as far as other counts in the same
  // expression can say it: for all that match, where all are as long. Nullopt: they cannot.
  std::optional<std::string> ebnf(Spelling spelling, int64_t least, int64_t most) const;

  // Does the whole of it match? Ill-formed UTF-8 does not. Time: its length times the expression's size.
  bool matches(std::string_view text) const;

 private:
  friend class RegexParser;

  struct Node {
    enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat };
    Kind kind = Kind::kSequence;  // of nothing: the empty text
    CodePoints set;
    std::vector<Node> parts;  // kRepeat: one
    int64_t least = 0;
    int64_t most = -1;  // kRepeat: -1 is any number
  };
  // A state of the automaton: takes a character of `set` to `next`, or (set < 0) goes on to both for nothing.
  struct State {
    int32_t set = -1;
    int32_t next = -1;
    int32_t other = -1;
  };

  // Characters of the texts of a node; most is -1 where there is no bound.
  struct Lengths {
    int64_t least = 0;
    int64_t most = 0;
  };
  static Lengths lengths(const Node& node);
  static bool lengthen(Node& node, int64_t least);
  static bool shorten(Node& node, int64_t most);
  static bool shorten_parts(Node& sequence, int64_t most);

  static void take_out(const CodePoints& set, Node& node);
  static void write(const Node& node, Spelling spelling, std::string& out);
  static void write_free_choice(const Node& choice, Spelling spelling, std::string& out);
  Status build(size_t most_states);
  int32_t build(const Node& node, int32_t next);
  int32_t add_state(State state);
  void enter(int32_t state, std::vector<int32_t>& entered, std::vector<uint32_t>& seen, uint32_t round) const;

  Node root_;
  std::vector<CodePoints> sets_;
  std::vector<State> states_;  // the first is the end
  int32_t start_ = 0;
  size_t most_states_ = 0;
};

}  // namespace quire::grammar
