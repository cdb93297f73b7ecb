#include "c_api/json_record.h"

#include <cmath>
#include <limits>

#include "base/parse_json.h"

namespace quire::c_api {
namespace json = boost::json;
namespace {

Status expected_type(const char* expected, const json::value& found) {
  return invalid_argument("expected {}, found {}", expected, describe(found));
}

// 2.0 is a whole number, too.
std::optional<int64_t> whole_number(const json::value& value) {
  if (const int64_t* number = value.if_int64()) return *number;
  if (const double* number = value.if_double()) {
    if (std::abs(*number) < 9e15 && std::trunc(*number) == *number) return static_cast<int64_t>(*number);
  }
  return std::nullopt;
}

}  // namespace

std::string describe(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return value.get_bool() ? "true" : "false";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "the number " + json::serialize(value);
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

Result<json::object> parse_object(std::string_view text, std::string_view what) {
  boost::system::error_code error;
  json::value value = parse_json(text, error);
  if (error) return invalid_argument("{} is not JSON: {}", what, error.message());
  if (!value.is_object()) return invalid_argument("{} must be a JSON object, found {}", what, describe(value));
  return std::move(value.get_object());
}

Status read_value(const json::value& value, bool& out) {
  if (!value.is_bool()) return expected_type("true or false", value);
  out = value.get_bool();
  return {};
}

Status read_value(const json::value& value, int64_t& out) {
  const auto number = whole_number(value);
  if (!number) return expected_type("a whole number", value);
  out = *number;
  return {};
}

Status read_value(const json::value& value, int32_t& out) {
  int64_t number = 0;
  QUIRE_RETURN_IF_ERROR(read_value(value, number));
  if (number < std::numeric_limits<int32_t>::min() || number > std::numeric_limits<int32_t>::max()) {
    return expected_type("a whole number of 32 bits", value);
  }
  out = static_cast<int32_t>(number);
  return {};
}

Status read_value(const json::value& value, uint64_t& out) {
  if (const uint64_t* number = value.if_uint64()) {
    out = *number;
    return {};
  }
  int64_t number = 0;
  QUIRE_RETURN_IF_ERROR(read_value(value, number));
  out = static_cast<uint64_t>(number);
  return {};
}

Status read_value(const json::value& value, double& out) {
  if (!value.is_number()) return expected_type("a number", value);
  out = value.to_number<double>();
  return {};
}

Status read_value(const json::value& value, float& out) {
  double number = 0;
  QUIRE_RETURN_IF_ERROR(read_value(value, number));
  if (std::abs(number) > std::numeric_limits<float>::max()) return expected_type("a number of 32 bits", value);
  out = static_cast<float>(number);
  return {};
}

Status read_value(const json::value& value, std::string& out) {
  if (!value.is_string()) return expected_type("a string", value);
  out = std::string_view(value.get_string());
  return {};
}

Status read_value(const json::value& value, std::vector<std::string>& out) {
  out.clear();
  if (value.is_string()) return read_value(value, out.emplace_back());
  const json::array* list = value.if_array();
  if (list == nullptr) return expected_type("a list of strings", value);
  for (const json::value& item : *list) {
    if (!item.is_string()) return expected_type("a list of strings", item);
    out.emplace_back(std::string_view(item.get_string()));
  }
  return {};
}

Status read_value(const json::value& value, TokenSet& out) {
  const json::array* list = value.if_array();
  if (list == nullptr) return expected_type("a list of token ids", value);
  std::vector<TokenId> ids(list->size());
  for (size_t i = 0; i < ids.size(); ++i) {
    auto status = read_value((*list)[i], ids[i]);
    if (!status.ok()) return status;
  }
  out = TokenSet(std::move(ids));
  return {};
}

}  // namespace quire::c_api
