// Fields that are known and not honoured: a request that asks for something by one of them is refused by its name.
#pragma once

#include <span>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::server {

struct RefusedField {
  const char* name;
  bool (*harmless)(const boost::json::value&);  // values that ask for nothing
  const char* reason;
};

// null, false, 0, "", [] and {}.
bool is_falsy(const boost::json::value& value);
bool is_null(const boost::json::value& value);
bool is_one(const boost::json::value& value);  // or null

// Errors: invalid_argument with param().
Status check_refused(const boost::json::object& body, std::span<const RefusedField> fields);

}  // namespace quire::server
