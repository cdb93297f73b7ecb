// JSON of strangers. Boost.JSON's own parse() looks each name up in a table whose hash anybody can compute, so that
// 131,072 chosen names take it ten seconds. Here time is linear in the text, whatever the names.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include <boost/json.hpp>

namespace quire {

inline constexpr size_t kMostJsonMembers = 65'536;  // of one object

// Text may become a hundred times as large when it is read: what counts is how many values there are.
struct JsonLimits {
  size_t max_depth = 32;
  // Of one list, which are objects.
  size_t max_items = std::numeric_limits<size_t>::max();
  // Of the whole text: values that are no numbers, and numbers, of which more are usual (lists of token ids).
  size_t max_values = std::numeric_limits<size_t>::max();
  size_t max_numbers = std::numeric_limits<size_t>::max();
};

struct JsonReport {
  size_t used = 0;  // bytes that were understood
  // Where a list, an object or the whole text has more than may be: "messages has 70000 entries; at most 65536 are
  // taken". What is too much is counted and not kept.
  std::string excess;
  std::string member;  // of the outermost object, which holds such a list or object: "messages"; may be empty
};

// The value of a text that is valid JSON in UTF-8, as boost::json::parse() has it: of a name that comes twice the last
// value counts. `error` says what is wrong otherwise; its message is for clients: the library's own, an object of too
// many members, one whose names collide (or are the same many times over), or what is more than `limits` allow.
// Throws as the library: std::bad_alloc, std::length_error for what it cannot hold.
boost::json::value parse_json(std::string_view text, boost::system::error_code& error, const JsonLimits& limits = {},
                              JsonReport* report = nullptr);

}  // namespace quire
