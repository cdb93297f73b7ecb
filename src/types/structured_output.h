// What the text of an answer must be, as a request says it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace quire {

struct StructuredOutput {
  enum class Kind : uint8_t {
    kJsonObject,     // any JSON object
    kJsonSchema,     // text: a JSON schema
    kRegex,          // text: the whole answer matches it
    kChoice,         // one of `choices`
    kGrammar,        // text: EBNF (GBNF), from its rule "root"
    kStructuralTag,  // text: a structural tag as JSON, in xgrammar's form: free text with parts that are constrained
  };

  Kind kind = Kind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;
  // Of JSON: whitespace between tokens as the model likes it (a bounded run of it); else none but one space behind
  // ',' and ':'.
  bool any_whitespace = true;
  // Special tokens may be said where their spelling is text: of formats that have some as marks.
  bool special_tokens = false;

  bool operator==(const StructuredOutput&) const = default;
};

}  // namespace quire
