// A grammar in EBNF, read into a tree: what texts are recognised by (grammar/recogniser.h), and what tells where its
// counts may be left to that.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/regex.h"

namespace quire::grammar {

class Rules {
 public:
  struct Node {
    enum class Kind : uint8_t {
      kText,      // `text`
      kSet,       // one character of `set`
      kRun,       // characters of `set`, from `least` to `most`
      kSequence,  // `parts`
      kChoice,    // one of `parts`
      kRepeat,    // the one part, from `least` to `most` times
      kRule,      // what the one part, a rule's body, stands for
      kFree,      // text without any of `excluded`
    };
    Kind kind = Kind::kSequence;
    bool loose = false;  // kRun: the grammar that masks are made from does not count it
    int64_t least = 0;
    int64_t most = -1;  // -1: any number
    CodePoints set;
    std::u32string text;
    std::vector<int32_t> parts;
    std::vector<std::u32string> excluded;
  };

  // Without macros, attributes of rules, assertions, classes of letters and left recursion. Errors: unimplemented:
  // one of these; invalid_argument: no grammar.
  static Result<std::shared_ptr<const Rules>> parse(std::string_view ebnf);

  const Node& node(int32_t index) const { return nodes_[static_cast<size_t>(index)]; }
  const std::vector<Node>& nodes() const { return nodes_; }
  int32_t root() const { return root_; }
  // The fewest characters that a node stands for.
  int64_t least_characters(int32_t index) const { return least_characters_[static_cast<size_t>(index)]; }
  size_t bytes() const;  // about, in memory

  // The grammar without the counts of loose runs: long ones, or of large sets, behind which nothing of the set may
  // come, so that what follows ends them. Masks of such a grammar are cheap: a state for each count would cost
  // milliseconds.
  const std::string& loose_ebnf(size_t grammar = 0) const { return loose_ebnfs_[grammar]; }
  bool any_loose() const { return any_loose_; }
  // Is anything counted that is more than one character? Following such counts may take any time.
  bool counts_parts() const;

 private:
  friend class RulesAnalysis;
  friend class RulesBuilder;
  friend class RulesParser;

  std::vector<Node> nodes_;
  int32_t root_ = 0;
  bool any_loose_ = false;
  std::vector<std::string> loose_ebnfs_;
  std::vector<int64_t> least_characters_;
};

// Rules made of several grammars and what stands between them.
class RulesBuilder {
 public:
  // The node of a grammar's root; grammars are numbered as they come. Errors: as of Rules::parse().
  Result<int32_t> grammar(std::string_view ebnf);
  int32_t add(Rules::Node node);
  // REQUIRES: well-formed UTF-8.
  int32_t text(std::string_view text);
  int32_t free(const std::vector<std::string>& excluded);

  // Errors: unimplemented: left recursion.
  Result<std::shared_ptr<const Rules>> finish(int32_t root);

 private:
  friend class RulesParser;

  // A run, and where its grammar says it.
  struct RunPlace {
    int32_t node;
    size_t grammar;
    size_t begin;      // of the class
    size_t class_end;  // of the count: `end`
    size_t end;
  };

  std::shared_ptr<Rules> rules_ = std::make_shared<Rules>();
  std::vector<std::string> grammars_;
  std::vector<RunPlace> runs_;

  friend class RulesAnalysis;
};

}  // namespace quire::grammar
