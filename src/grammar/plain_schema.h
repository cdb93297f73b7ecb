// Schemas that combine others: allOf, keywords beside $ref, anyOf or oneOf, not, and if with then and else. A grammar
// is made of the plain output, in which a schema object has one shape. Private to grammar/.
#pragma once

#include <boost/json.hpp>

#include "base/status.h"
#include "grammar/schema.h"

namespace quire::grammar {

// A plain schema that is satisfied by values that satisfy `asked`'s root, by nearly all of them, and by no others:
// conjunctions are merged, alternatives taken apart. What a negation cannot say is left out where others can be said
// (numbers that are no integers), or refused. `asked` was checked (check_schema_words) and its patterns were read.
// Errors: invalid_argument naming the keyword and the place.
Result<boost::json::value> plain_schema(const Schema& asked);

}  // namespace quire::grammar
