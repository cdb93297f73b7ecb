#include "cli/json_lines.h"

#include <iostream>
#include <string>

namespace quire::cli {
namespace {

namespace json = boost::json;

constexpr size_t kMaxDepth = 256;

Result<json::object> object_of(const std::string& line) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::value value = json::parse(line, error, {}, options);
  if (error) return invalid_argument("not JSON: {}", error.message());
  if (!value.is_object())
    return invalid_argument("expected a JSON object, found {}", json::serialize(value).substr(0, 40));
  return std::move(value.as_object());
}

}  // namespace

AnsweredLines answer_json_lines(FunctionRef<Result<json::object>(const json::object&)> answer) {
  std::ios::sync_with_stdio(false);
  AnsweredLines lines;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ++lines.all;
    Result<json::object> input = object_of(line);
    const Result<json::object> out = input.ok() ? answer(*input) : input;
    if (!out.ok()) ++lines.errors;
    std::cout << json::serialize(out.ok() ? *out : json::object{{"error", out.status().message()}}) << '\n';
  }
  std::cout.flush();
  return lines;
}

}  // namespace quire::cli
