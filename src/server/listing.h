// A page of a list, as OpenAI's clients ask for it: ?limit=20&order=desc&after=ID.
#pragma once

#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::server {

// items: objects with an "id", the oldest first. newest_first: where the query does not say.
// {"object": "list", "data", "first_id", "last_id", "has_more"}.
// Errors: invalid_argument with param().
Result<boost::json::object> page_of(boost::json::array items, std::string_view query, bool newest_first);

}  // namespace quire::server
