// Forms as browsers and HTTP clients upload files with (RFC 7578).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::server {

struct FormPart {
  std::string name;
  std::string filename;  // empty: a plain field
  std::string_view body;
};

// The parts of a body; they point into it. content_type: the request's, with the boundary.
// Errors: invalid_argument: no boundary, a part that is none, a name twice, more than 16 parts, an end that is missing.
Result<std::vector<FormPart>> parse_multipart(std::string_view content_type, std::string_view body);

}  // namespace quire::server
