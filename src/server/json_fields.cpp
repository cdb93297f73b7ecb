#include "server/json_fields.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/parse_json.h"
#include "server/api_error.h"

namespace quire::server {
namespace json = boost::json;

namespace {
// 64 MiB or so when they are read, and a few times that on their way to a prompt.
constexpr JsonLimits kLimits = {.max_depth = 64, .max_items = 65'536, .max_values = 524'288, .max_numbers = 8'388'608};
}  // namespace

Result<json::object> parse_json_object(std::string_view body) {
  if (body.empty()) return invalid_argument("The request has no body; a JSON object is expected.");
  boost::system::error_code error;
  JsonReport report;
  try {
    json::value value = parse_json(body, error, kLimits, &report);
    if (error == json::error::too_deep) {
      return invalid_argument("The request's JSON is nested deeper than {} levels.", kLimits.max_depth);
    }
    if (!report.excess.empty()) {
      return invalid_argument("The request is larger than this server takes: {}.", report.excess)
          .with_param(report.member);
    }
    if (error) {
      return invalid_argument(
          "The request's body is not valid JSON (UTF-8), or more than this server takes: {} at "
          "byte {} of {}.",
          error.message(), report.used, body.size());
    }
    if (!value.is_object())
      return invalid_argument("The request's body must be a JSON object; found {}.", describe(value));
    return std::move(value.as_object());
  } catch (const std::bad_alloc&) {
    return resource_exhausted("There is no memory for a request of {} bytes.", body.size());
  } catch (const std::exception&) {  // a string or an array beyond the library's own limits
    return invalid_argument("The request's JSON is too large.");
  }
}

std::string describe(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return value.get_bool() ? "true" : "false";
    case json::kind::int64:
      return fmt::format("the number {}", value.get_int64());
    case json::kind::uint64:
      return fmt::format("the number {}", value.get_uint64());
    case json::kind::double_:
      return fmt::format("the number {}", value.get_double());
    case json::kind::string:
      return fmt::format("the string {}", in_quotes(value.get_string(), 40));
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

std::optional<int64_t> as_integer(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double()) {
    const double number = value.get_double();
    constexpr double kExact = 9007199254740992.0;  // 2^53
    if (std::trunc(number) == number && std::abs(number) <= kExact) return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

std::optional<float> as_float(const json::value& value) {
  double number = 0;
  if (value.is_int64()) {
    number = static_cast<double>(value.get_int64());
  } else if (value.is_uint64()) {
    number = static_cast<double>(value.get_uint64());
  } else if (value.is_double()) {
    number = value.get_double();
  } else {
    return std::nullopt;
  }
  if (!(std::abs(number) <= std::numeric_limits<float>::max())) return std::nullopt;
  return static_cast<float>(number);
}

const json::value* JsonFields::any(std::string_view name) const {
  return object_.if_contains(name);
}

const json::value* JsonFields::find(std::string_view name) const {
  if (!status_.ok()) return nullptr;
  const json::value* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void JsonFields::fail(std::string_view name, std::string message) {
  if (status_.ok())
    status_ = Status(StatusCode::kInvalidArgument, std::move(message)).with_param(prefix_ + std::string(name));
}

void JsonFields::fail_type(std::string_view name, std::string_view expected, const json::value& found) {
  fail(name, fmt::format("{}{} must be {}, got {}.", prefix_, name, expected, describe(found)));
}

std::optional<bool> JsonFields::boolean(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  fail_type(name, "true or false", *value);
  return std::nullopt;
}

std::optional<int64_t> JsonFields::integer(std::string_view name, int64_t least, int64_t most) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = as_integer(*value);
  if (!number && !value->is_uint64()) {
    fail_type(name, "an integer", *value);
    return std::nullopt;
  }
  if (!number || *number < least || *number > most) {
    fail_type(name, fmt::format("an integer from {} to {}", least, most), *value);
    return std::nullopt;
  }
  return number;
}

std::optional<float> JsonFields::number(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  const auto number = as_float(*value);
  if (!number) fail_type(name, "a finite number", *value);
  return number;
}

std::optional<std::string> JsonFields::string(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(std::string_view(value->get_string()));
  fail_type(name, "a string", *value);
  return std::nullopt;
}

const json::array* JsonFields::array(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return nullptr;
  if (value->is_array()) return &value->get_array();
  fail_type(name, "a list", *value);
  return nullptr;
}

const json::object* JsonFields::object(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return &value->get_object();
  fail_type(name, "an object", *value);
  return nullptr;
}

Result<std::string> string_of(const json::object& object, const char* field) {
  const json::value* value = object.if_contains(field);
  if (value == nullptr || !value->is_string()) return invalid_argument("\"{}\" must be a string", field);
  return std::string(std::string_view(value->get_string()));
}

}  // namespace quire::server
