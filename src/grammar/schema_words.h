// Words of JSON schemas that several readers of them need. Private to grammar/.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

namespace quire::grammar {

// What only describes.
inline bool is_annotation(std::string_view keyword) {
  constexpr std::array<std::string_view, 18> kAnnotations = {
      "title",       "description",      "default",  "examples", "example", "deprecated",
      "readOnly",    "writeOnly",        "$comment", "$schema",  "$id",     "$defs",
      "definitions", "contentMediaType", "nullable", "$anchor",  "strict",  "discriminator"};
  return std::ranges::find(kAnnotations, keyword) != kAnnotations.end();
}

// Names of the types that a schema allows; empty: any. REQUIRES: "type" is a name or a list of names.
inline std::vector<std::string_view> named_types(const boost::json::object& schema) {
  std::vector<std::string_view> types;
  const boost::json::value* type = schema.if_contains("type");
  if (type == nullptr) return types;
  if (type->is_string()) return {type->get_string()};
  for (const boost::json::value& one : type->get_array()) types.emplace_back(one.get_string());
  return types;
}

// Whether a schema holds others against the same value.
inline bool combines(const boost::json::object& schema) {
  constexpr std::array<std::string_view, 5> kCombining = {"$ref", "allOf", "anyOf", "oneOf", "if"};
  return std::ranges::any_of(kCombining, [&](std::string_view name) { return schema.contains(name); });
}

// By JSON schema's rules: 1.0 is an integer.
inline bool value_has_type(const boost::json::value& value, std::string_view type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_bool();
  if (type == "integer") {
    return value.is_int64() || value.is_uint64() ||
           (value.is_double() && std::floor(value.get_double()) == value.get_double());
  }
  if (type == "number") return value.is_number();
  if (type == "string") return value.is_string();
  if (type == "array") return value.is_array();
  return type == "object" && value.is_object();
}

// By JSON schema's rules: 1 and 1.0 are the same.
bool same_json(const boost::json::value& a, const boost::json::value& b);

}  // namespace quire::grammar
