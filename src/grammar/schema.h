// A JSON schema that was checked (grammar/check.h): what it asks of a value, said in two ways that must agree: as a
// grammar for the model, and as a check of a finished value.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "grammar/check.h"
#include "grammar/regex.h"

namespace quire::grammar {

// Levels of arrays and objects that are looked at in an answer; a deeper one is no valid answer.
inline constexpr int kMostAnswerLevels = 500;

class Schema {
 public:
  // Errors: invalid_argument naming what is not supported or what nothing satisfies, and where.
  static Result<std::shared_ptr<const Schema>> parse(std::string_view text, const GrammarLimits& limits);
  // The same of JSON that was read.
  static Result<std::shared_ptr<const Schema>> from(boost::json::value root, const GrammarLimits& limits);

  // EBNF whose rule "root" are the JSON texts of values that satisfy the schema: not all of them (one spelling of each
  // string, declared properties in their order, numbers of limited length), but nothing else. any_whitespace: as in
  // StructuredOutput. Errors: invalid_argument: a part cannot be said exactly, or nothing satisfies it.
  Result<std::string> ebnf(bool any_whitespace) const;

  // By the rules of JSON schema; what is narrower in our grammar (formats, patterns) is so here.
  // Errors: data_loss saying where the value breaks the schema.
  Status validate(const boost::json::value& value) const;
  // The same of a text, which must be JSON.
  Status validate_text(std::string_view text) const;

  // Does the value satisfy this part of the schema?
  bool satisfies(const boost::json::value& part, const boost::json::value& value) const;
  // Can no value satisfy both? False: not known.
  bool disjoint(const boost::json::value& one, const boost::json::value& other) const;

  const boost::json::value& root() const { return root_; }
  const GrammarLimits& limits() const { return limits_; }
  // Where the "$ref" of an object leads. REQUIRES: checked.
  const boost::json::value& place(const boost::json::object& reference) const;
  // What a schema refers to, through all of its references. REQUIRES: checked, and plain.
  const boost::json::value& resolved(const boost::json::value& schema) const;
  // Of a pattern of this schema, or a format's. Null: there is none where a schema stands.
  const Regex* regex(std::string_view pattern) const;

 private:
  Schema(boost::json::value root, const GrammarLimits& limits) : root_(std::move(root)), limits_(limits) {}
  Status read_patterns(const boost::json::value& value);
  Status read_pattern(std::string_view pattern);
  // loosely: patterns and formats count as satisfied.
  Status check(const boost::json::value& schema, const boost::json::value& value, const std::string& where,
               bool loosely) const;

  friend class SchemaValidator;

  boost::json::value root_;
  std::shared_ptr<const Schema> asked_;  // of which this is the plain form; nullptr: this is what was asked
  GrammarLimits limits_;
  std::unordered_map<std::string, Regex> regexes_;
};

// Would a grammar come of it? Errors: as of Schema::parse() and ebnf().
Status check_whole_schema(const boost::json::value& schema, const GrammarLimits& limits);

// JSON as the grammar writes it: numbers so that they come back the same.
std::string json_text(const boost::json::value& value);

// A JSON text of at most kMostAnswerLevels levels. Errors: data_loss.
Result<boost::json::value> parse_answer(std::string_view text);

}  // namespace quire::grammar
