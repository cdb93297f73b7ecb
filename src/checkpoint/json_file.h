// JSON of files that somebody else wrote: bounded in depth and number of values, and, where a second meaning would be
// dangerous, without duplicate keys.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::checkpoint {

enum class DuplicateKeys {
  kRefuse,
  kLastWins,  // as Python's json, which writes and reads most configuration files
};

struct JsonLimits {
  DuplicateKeys duplicate_keys = DuplicateKeys::kLastWins;
  size_t most_values = 4'000'000;  // bounds the memory of the tree: a hostile text of 100 MB can hold 50 million
  size_t most_depth = 64;
};

// `text` may end in white space and in nothing else. Errors: data_loss with the byte at fault and the reason.
Result<boost::json::object> parse_json_object(std::string_view text, const JsonLimits& limits);

// A configuration file. Errors: as read_text_file (64 MiB at most) and parse_json_object, with the path.
Result<boost::json::object> read_json_object(const std::filesystem::path& path, const JsonLimits& limits);

// For messages: a value's kind, and the value itself where it is short.
std::string described(const boost::json::value& value);

}  // namespace quire::checkpoint
