// What a request asks its answer to be is looked at here before anything compiles it: its size, its depth, how often it
// repeats, and whether every word of it would be heeded. A output that passes compiles in bounded time and memory, and
// an answer that follows the grammar satisfies it.
#pragma once

#include <cstdint>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "types/structured_output.h"

namespace quire::grammar {

struct GrammarLimits {
  size_t max_bytes = 512 << 10;  // of a schema, a grammar or all choices
  size_t max_regex_bytes = 16 << 10;
  int64_t max_depth = 64;            // of JSON, of groups
  int64_t max_schema_nodes = 20000;  // values in the schema
  int64_t max_alternatives = 10000;  // of one enum, of all choices
  int64_t max_count = 100000;        // of minLength, maxItems, {n,m} in an expression
  int64_t max_repetition = 20000;    // product of nested counts in an expression
  double kept_mask_seconds = 1e-4;   // masks that take a processor longer are kept
};

// Errors: invalid_argument saying what was found, where and what to do.
Status check_structured_output(const StructuredOutput& output, const GrammarLimits& limits);

// The parts of it.
Status check_json_schema(const boost::json::value& schema, const GrammarLimits& limits);
// A schema in the output of which a grammar is made: one shape an object.
Status check_plain_schema(const boost::json::value& schema, const GrammarLimits& limits);
// One that may combine others (plain_schema.h): every word is known and of the right kind.
Status check_schema_words(const boost::json::value& schema, const GrammarLimits& limits);
Status check_regex(std::string_view pattern, const GrammarLimits& limits);
Status check_ebnf(std::string_view grammar, const GrammarLimits& limits);

}  // namespace quire::grammar
