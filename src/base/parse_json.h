// JSON of strangers. Boost.JSON's own parse() looks each name up in a table whose hash anybody can compute, so that
// 131,072 chosen names take it ten seconds. Here time is linear in the text, whatever the names.
#pragma once

#include <cstddef>
#include <string_view>

#include <boost/json.hpp>

namespace quire {

inline constexpr size_t kMostJsonMembers = 65'536;  // of one object

struct JsonLimits {
  size_t max_depth = 32;
};

// The value of a text that is valid JSON in UTF-8, as boost::json::parse() has it: of a name that comes twice the last
// value counts. `error` says what is wrong otherwise; its message is for clients: the library's own, an object of too
// many members, or one whose names collide (or are the same many times over). `used`: bytes that were understood.
// Throws as the library: std::bad_alloc, std::length_error for what it cannot hold.
boost::json::value parse_json(std::string_view text, boost::system::error_code& error, const JsonLimits& limits = {},
                              size_t* used = nullptr);

}  // namespace quire
