// Commands that read JSON objects line by line and answer each with one.
#pragma once

#include <cstdint>

#include <boost/json.hpp>

#include "base/function_ref.h"
#include "base/status.h"

namespace quire::cli {

// For each line of standard input that is not empty: parses an object, and prints what `answer` makes of it on a line
// of standard output; {"error": ...} where the line is no object or `answer` fails. The other lines are done all the
// same.
struct AnsweredLines {
  int64_t all = 0;
  int64_t errors = 0;
};
AnsweredLines answer_json_lines(FunctionRef<Result<boost::json::object>(const boost::json::object&)> answer);

}  // namespace quire::cli
