// Arguments of calls that are written as elements: a parameter each, strings as they are, other values as JSON.
#pragma once

#include <boost/json.hpp>

#include "base/status.h"
#include "grammar/check.h"
#include "grammar/tool_formats.h"

namespace quire::grammar {

// What an object of this schema looks like, as a part of a structural tag: declared parameters in their order; of a
// schema that declares none, any. Strings with a length, pattern or format have neither '<' nor ends of lines.
// Errors: invalid_argument: what the schema says cannot be said so. REQUIRES: check_whole_schema().
Result<boost::json::object> xml_arguments(const boost::json::value& schema, const XmlCallFormat& format,
                                          const GrammarLimits& limits);

}  // namespace quire::grammar
