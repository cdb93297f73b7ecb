// Small schemas, and parts of schemas, that plain_schema makes others of. Private to grammar/.
#pragma once

#include <cstdint>

#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "grammar/schema.h"

namespace quire::grammar {

// Values in it, itself included.
int64_t nodes(const boost::json::value& value);
// Values that both lists have.
boost::json::array in_both(const boost::json::array& a, const boost::json::array& b);
// The schema of these values; false where there are none.
boost::json::value values_of(boost::json::array values);
// The schema of what any of these allows, as plainly as it can be said.
boost::json::value any_of(boost::json::array ways);
// Its alternatives; nullptr: it has none.
boost::json::value* choice(boost::json::object& object);
// The schema of everything but these values.
boost::json::value excluding(boost::json::array values);
// What such a schema excludes; nullptr: it says something else.
const boost::json::array* excluded(const boost::json::object& object);
// A schema of strings without these. Errors: invalid_argument where what it says of them leaves no way to say so.
Result<boost::json::value> strings_without(const boost::json::object& schema, const boost::json::array& values,
                                           std::string_view where);

// Of the texts of a pattern or format those with the lengths that a schema of strings asks for. Errors:
// invalid_argument: they cannot be told.
Result<std::string> ebnf_of_length(const Regex& regex, const boost::json::object& schema, Spelling spelling);

// Does an object that satisfies a part of `whole` have this property evaluated, whatever alternatives it takes? levels:
// that it looks into.
bool always_evaluates(const Schema& whole, const boost::json::value& part, std::string_view name, int levels);

}  // namespace quire::grammar
