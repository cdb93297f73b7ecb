#include "grammar/empty_schemas.h"

#include <algorithm>

#include "grammar/schema_words.h"
#include "grammar/typed_schema.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr int kMostEmptyLevels = 256;  // deeper it is not known

}  // namespace

bool EmptySchemas::is_empty(const json::value& part) {
  if (part.is_bool()) return !part.get_bool();
  const json::object* object = part.if_object();
  if (object == nullptr || depth_ >= kMostEmptyLevels) return false;
  ++depth_;
  const bool empty = is_empty(*object);
  --depth_;
  return empty;
}

// All that it says must hold, so that one keyword which nothing satisfies is enough.
bool EmptySchemas::is_empty(const json::object& part) {
  if (part.contains("$ref") && is_empty_place(part)) return true;
  const auto empty = [this](const json::value& one) { return is_empty(one); };
  for (const std::string_view name : {"anyOf", "oneOf"}) {
    const json::value* ways = part.if_contains(name);
    if (ways != nullptr && std::ranges::all_of(ways->get_array(), empty)) return true;
  }
  const json::value* all = part.if_contains("allOf");
  return (all != nullptr && std::ranges::any_of(all->get_array(), empty)) || has_no_type(part);
}

// A place that is looked at already is not known, which ends what refers to itself.
bool EmptySchemas::is_empty_place(const json::object& reference) {
  const json::value& place = schema_.place(reference);
  const auto [found, is_new] = places_.try_emplace(&place, false);
  if (!is_new) return found->second;
  const bool empty = is_empty(place);
  return places_[&place] = empty;
}

bool EmptySchemas::has_no_type(const json::object& part) {
  const auto types = named_types(part);
  return !types.empty() && std::ranges::all_of(types, [&](std::string_view type) {
    return !has_values(part, type) || (type == "array" && has_no_array(part)) ||
           (type == "object" && has_no_object(part));
  });
}

bool EmptySchemas::has_no_array(const json::object& part) {
  const json::value* least = part.if_contains("minItems");
  const auto count = least == nullptr ? 0 : least->to_number<size_t>();
  const json::value* list = part.if_contains("prefixItems");
  const size_t num_prefix = list == nullptr ? 0 : list->get_array().size();
  for (size_t i = 0; i < std::min(count, num_prefix); ++i) {
    if (is_empty(list->get_array()[i])) return true;
  }
  return count > num_prefix && is_empty(schema_at(part, "items"));
}

bool EmptySchemas::has_no_object(const json::object& part) {
  const json::value* required = part.if_contains("required");
  if (required == nullptr) return false;
  const json::object& properties = map_at(part, "properties");
  const json::value rest = part.contains("patternProperties") ? true : schema_at(part, "additionalProperties");
  return std::ranges::any_of(required->get_array(), [&](const json::value& name) {
    const json::value* declared = properties.if_contains(name.get_string());
    return is_empty(declared == nullptr ? rest : *declared);
  });
}

}  // namespace quire::grammar
