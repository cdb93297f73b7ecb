// The formats of JSON schema as regular expressions. Each is narrower than its standard where the standard's own rules
// are not regular, or where validators disagree: what matches is valid for all of them.
#pragma once

#include <string_view>

namespace quire::grammar {

// Empty: no such format.
std::string_view format_pattern(std::string_view format);

}  // namespace quire::grammar
