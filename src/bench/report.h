// How results are shown: lines of a table in the shape of vLLM's, and JSON files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::bench {

// "======= Serving Benchmark Result =======" over 50 columns; '-' for a part of it.
std::string heading(std::string_view title, char fill);
// "Successful requests:                     1000": the name in 40 columns; numbers to two decimals.
std::string line(std::string_view name, int64_t value);
std::string line(std::string_view name, double value);
std::string line(std::string_view name, std::string_view value);

// "50", "99.9": a percent as it stands in names of fields.
std::string percent_name(double percent);

// JSON indented by four, with a line's end. Numbers that JSON lacks (NaN, infinity) become null.
std::string to_text(const boost::json::value& value);
// Errors: invalid_argument, naming the file, when it cannot be written.
Status write_json(const std::string& path, const boost::json::value& value);

// A figure of a measurement: null unless finite.
boost::json::value figure(double value);
boost::json::array figures(const std::vector<double>& values);

}  // namespace quire::bench
