// The field "metadata" of what is kept: at most 16 strings of 512 bytes, under names of 64.
#pragma once

#include <boost/json.hpp>

#include "server/json_fields.h"

namespace quire::server {

// null where there is none; what is wrong stays in `fields`.
boost::json::value read_metadata(JsonFields& fields);

}  // namespace quire::server
