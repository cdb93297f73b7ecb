// Structural tags: free text with parts that are constrained.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "grammar/check.h"
#include "grammar/rules.h"
#include "types/structured_output.h"

namespace quire::grammar {

struct TagOptions {
  bool any_whitespace = true;  // as of StructuredOutput
};

// In a tag of ours: the output of what an answer says once its reasoning is told apart, for the check of what was said.
void put_said(const StructuredOutput& output, boost::json::object& tag);
std::optional<StructuredOutput> take_said(boost::json::object& tag);

// A tag, and what recognises its texts.
struct TagRules {
  std::string tag;  // without the counts that the rules have (Rules::loose_ebnf)
  std::shared_ptr<const Rules> rules;
};

// Of a tag all of whose schemas and expressions are EBNF (plain_structural_tag). Errors: unimplemented: parts that only
// the masks know.
Result<TagRules> rules_of_tag(std::string_view plain);

// The same tag with its schemas and regular expressions as EBNF of ours. Errors: invalid_argument naming the part that
// is wrong or not supported. REQUIRES: checked before (grammar/check.h).
Result<std::string> plain_structural_tag(std::string_view text, const TagOptions& options, const GrammarLimits& limits);

}  // namespace quire::grammar
