// Schemas that are a type, or several, with their keywords: what two of them have in common, and whether anything is
// left. Private to grammar/.
#pragma once

#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::grammar {

// The member of that name; where there is none, an empty object, and the schema that all satisfy.
const boost::json::object& map_at(const boost::json::object& schema, std::string_view name);
boost::json::value schema_at(const boost::json::object& schema, std::string_view name);

boost::json::value with_type(boost::json::object schema, std::string_view type);
// Names of types that both allow. REQUIRES: both name theirs.
boost::json::array shared_types(const boost::json::object& a, const boost::json::object& b);

// A keyword that says how large, long or many a value is, said twice: `mine` becomes the narrower. Keywords that hold
// schemas stay as they are. Errors: invalid_argument: it cannot be told.
Status narrow(std::string_view name, boost::json::value& mine, const boost::json::value& other,
              const std::string& where);

// Whether its counts, bounds and required properties let any value of the type be.
bool has_values(const boost::json::object& schema, std::string_view type);
// Without the types of which nothing is left; false: there is none.
boost::json::value without_empty(boost::json::object schema);

// Adds the stretches of numbers between `values`, none of which is in them.
void numbers_without(const boost::json::object& schema, std::string_view type, boost::json::array& values,
                     boost::json::array& ways);

}  // namespace quire::grammar
