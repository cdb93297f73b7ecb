#include "grammar/typed_schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "grammar/schema_words.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

struct NumberRange {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool open_low = false, open_high = false;
};

NumberRange range_of(const json::object& schema) {
  NumberRange range;
  const auto bound = [&](const char* name, double& value, bool& open, bool exclusive, bool lower) {
    const json::value* found = schema.if_contains(name);
    if (found == nullptr) return;
    const double to = found->to_number<double>();
    if (lower ? to < value : to > value) return;
    open = to == value ? open || exclusive : exclusive;
    value = to;
  };
  bound("minimum", range.low, range.open_low, false, true);
  bound("exclusiveMinimum", range.low, range.open_low, true, true);
  bound("maximum", range.high, range.open_high, false, false);
  bound("exclusiveMaximum", range.high, range.open_high, true, false);
  return range;
}

// Is there a multiple of `step` in it?
bool has_multiple(const NumberRange& range, double step) {
  double low = std::ceil(range.low / step);
  double high = std::floor(range.high / step);
  if (range.open_low && low * step == range.low) ++low;
  if (range.open_high && high * step == range.high) --high;
  return low <= high;
}

bool has_number(const json::object& schema, bool integer) {
  const NumberRange range = range_of(schema);
  const json::value* multiple = schema.if_contains("multipleOf");
  const double step = multiple == nullptr ? 0 : multiple->to_number<double>();
  // Of others the quotient would be rounded.
  if (step >= 1 && step <= 1e12 && step == std::floor(step)) return has_multiple(range, step);
  if (!integer) return range.low < range.high || (range.low == range.high && !range.open_low && !range.open_high);
  return has_multiple(range, 1);
}

bool ordered(const json::object& schema, std::string_view least, std::string_view most) {
  const json::value* low = schema.if_contains(least);
  const json::value* high = schema.if_contains(most);
  return low == nullptr || high == nullptr || low->to_number<double>() <= high->to_number<double>();
}

}  // namespace

json::value with_type(json::object schema, std::string_view type) {
  schema["type"] = type;
  return schema;
}

json::array shared_types(const json::object& a, const json::object& b) {
  json::array out;
  const auto others = named_types(b);
  const auto has = [&](std::string_view type) { return std::ranges::find(others, type) != others.end(); };
  for (const std::string_view type : named_types(a)) {
    if (has(type) || (type == "integer" && has("number"))) {
      out.emplace_back(type);
    } else if (type == "number" && has("integer")) {
      out.emplace_back("integer");
    }
  }
  return out;
}

Status narrow(std::string_view name, json::value& mine, const json::value& other, const std::string& where) {
  const bool is_lower = name.starts_with("min") || name == "exclusiveMinimum";
  const bool is_upper = name.starts_with("max") || name == "exclusiveMaximum";
  if (is_lower || is_upper) {
    const bool other_is_more = other.to_number<double>() > mine.to_number<double>();
    if (other_is_more == is_lower) mine = other;
    return {};
  }
  if (name == "multipleOf") {
    const double x = mine.to_number<double>();
    const double y = other.to_number<double>();
    if (x > 0 && y > 0 && std::fmod(x, y) == 0) return {};
    if (x > 0 && y > 0 && std::fmod(y, x) == 0) {
      mine = other;
      return {};
    }
  }
  if (name == "not") {
    json::array& values = mine.get_object().at("enum").get_array();
    for (const json::value& value : other.get_object().at("enum").get_array()) values.push_back(value);
    return {};
  }
  const bool elsewhere = name == "type" || name == "required" || name == "properties" ||
                         name == "additionalProperties" || name == "items" || name == "prefixItems";
  if (elsewhere) return {};
  return invalid_argument("in the schema at {}: \"{}\" twice, {} and {}, cannot be put together", where, name,
                          json::serialize(mine).substr(0, 80), json::serialize(other).substr(0, 80));
}

const json::object& map_at(const json::object& schema, std::string_view name) {
  static const json::object kNone;
  const json::value* found = schema.if_contains(name);
  return found == nullptr ? kNone : found->get_object();
}

json::value schema_at(const json::object& schema, std::string_view name) {
  const json::value* found = schema.if_contains(name);
  return found == nullptr ? json::value(true) : *found;
}

json::value without_empty(json::object schema) {
  const auto types = named_types(schema);
  if (types.empty()) return json::value(std::move(schema));
  json::array left;
  for (const std::string_view type : types) {
    if (has_values(schema, type)) left.emplace_back(type);
  }
  if (left.empty()) return json::value(false);
  if (left.size() < types.size()) schema["type"] = left.size() == 1 ? left.front() : json::value(std::move(left));
  return json::value(std::move(schema));
}

namespace {

// Of an object: for as many properties as it must have, and of those that it may have.
bool has_room(const json::object& schema) {
  const json::value* required = schema.if_contains("required");
  const json::value* most = schema.if_contains("maxProperties");
  if (required != nullptr && most != nullptr) {
    const json::array& names = required->get_array();
    size_t count = 0;  // a name may be listed twice
    for (auto at = names.begin(); at != names.end(); ++at) count += std::find(names.begin(), at, *at) == at ? 1 : 0;
    if (static_cast<double>(count) > most->to_number<double>()) return false;
  }
  const json::value* least = schema.if_contains("minProperties");
  const bool closed = schema_at(schema, "additionalProperties") == json::value(false);
  if (least == nullptr || !closed || schema.contains("patternProperties")) return true;
  const auto may_be = [](const auto& member) { return member.value() != json::value(false); };
  return static_cast<double>(std::ranges::count_if(map_at(schema, "properties"), may_be)) >= least->to_number<double>();
}

}  // namespace

bool has_values(const json::object& schema, std::string_view type) {
  if (type == "integer" || type == "number") return has_number(schema, type == "integer");
  if (type == "string") return ordered(schema, "minLength", "maxLength");
  if (type == "array") return ordered(schema, "minItems", "maxItems");
  if (type != "object") return true;
  if (!ordered(schema, "minProperties", "maxProperties")) return false;
  if (!has_room(schema)) return false;
  const json::value* required = schema.if_contains("required");
  if (required == nullptr) return true;
  const json::object& properties = map_at(schema, "properties");
  const json::value rest =
      schema.contains("patternProperties") ? json::value(true) : schema_at(schema, "additionalProperties");
  return std::ranges::all_of(required->get_array(), [&](const json::value& name) {
    const json::value* one = properties.if_contains(name.get_string());
    return (one == nullptr ? rest : *one) != json::value(false);
  });
}

void numbers_without(const json::object& schema, std::string_view type, json::array& values, json::array& ways) {
  std::ranges::sort(values, {}, [](const json::value& value) { return value.to_number<double>(); });
  const NumberRange range = range_of(schema);
  for (size_t i = 0; i <= values.size(); ++i) {
    json::object part = schema;
    if (i > 0) {
      part["exclusiveMinimum"] = values[i - 1];
      if (values[i - 1].to_number<double>() >= range.low) part.erase("minimum");
    }
    if (i < values.size()) {
      part["exclusiveMaximum"] = values[i];
      if (values[i].to_number<double>() <= range.high) part.erase("maximum");
    }
    if (has_number(part, type == "integer")) ways.push_back(with_type(std::move(part), type));
  }
}

}  // namespace quire::grammar
