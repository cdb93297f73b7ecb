#include "grammar/empty_schemas.h"

#include <algorithm>

#include "grammar/schema_words.h"
#include "grammar/typed_schema.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr int kMostEmptyLevels = 256;  // deeper it is not known

// What the values must be that `part` does not declare. Of several parts that are put together it is not known what
// they leave unevaluated.
json::value rest_of(const json::object& part, std::string_view name, std::string_view unevaluated) {
  return schema_at(part, part.contains(name) || combines(part) ? name : unevaluated);
}

}  // namespace

// What refers to itself is taken for empty until something else in it is found to be satisfied, which may show that of
// others: the rounds end when one finds nothing more.
template <typename Look>
bool EmptySchemas::settled(const Look& look) {
  if (in_round_) return look();
  while (true) {
    const size_t known = satisfied_.size();
    looked_at_.clear();
    in_round_ = true;
    const bool empty = look();
    in_round_ = false;
    if (!empty) return false;
    if (satisfied_.size() > known) continue;
    for (const json::value* place : looked_at_) {
      if (!satisfied_.contains(place)) empty_.insert(place);
    }
    return true;
  }
}

bool EmptySchemas::is_empty(const json::value& part) {
  return settled([&] { return looks_empty(part); });
}

bool EmptySchemas::has_none(const json::object& part, std::string_view type) {
  return settled([&] {
    return !has_values(part, type) || (type == "array" && no_array(part)) || (type == "object" && no_object(part));
  });
}

bool EmptySchemas::looks_empty(const json::value& part) {
  if (part.is_bool()) return !part.get_bool();
  const json::object* object = part.if_object();
  if (object == nullptr || depth_ >= kMostEmptyLevels) return false;
  ++depth_;
  const bool empty = looks_empty(*object);
  --depth_;
  return empty;
}

// All that it says must hold, so that one keyword which nothing satisfies is enough.
bool EmptySchemas::looks_empty(const json::object& part) {
  if (part.contains("$ref") && looks_empty_at(part)) return true;
  const auto empty = [this](const json::value& one) { return looks_empty(one); };
  for (const std::string_view name : {"anyOf", "oneOf"}) {
    const json::value* ways = part.if_contains(name);
    if (ways != nullptr && std::ranges::all_of(ways->get_array(), empty)) return true;
  }
  const json::value* all = part.if_contains("allOf");
  if (all != nullptr && std::ranges::any_of(all->get_array(), empty)) return true;
  const auto types = named_types(part);
  return !types.empty() && std::ranges::all_of(types, [&](std::string_view type) { return has_none(part, type); });
}

bool EmptySchemas::looks_empty_at(const json::object& reference) {
  const json::value* place = &schema_.place(reference);
  if (satisfied_.contains(place)) return false;
  if (empty_.contains(place) || !looked_at_.insert(place).second || looks_empty(*place)) return true;
  satisfied_.insert(place);
  return false;
}

bool EmptySchemas::no_array(const json::object& part) {
  const json::value* least = part.if_contains("minItems");
  const auto count = least == nullptr ? 0 : least->to_number<size_t>();
  const json::value* list = part.if_contains("prefixItems");
  const size_t num_prefix = list == nullptr ? 0 : list->get_array().size();
  for (size_t i = 0; i < std::min(count, num_prefix); ++i) {
    if (looks_empty(list->get_array()[i])) return true;
  }
  return count > num_prefix && looks_empty(rest_of(part, "items", "unevaluatedItems"));
}

bool EmptySchemas::no_object(const json::object& part) {
  const json::object& properties = map_at(part, "properties");
  const json::value rest =
      part.contains("patternProperties") ? true : rest_of(part, "additionalProperties", "unevaluatedProperties");
  if (const json::value* required = part.if_contains("required")) {
    const bool lacks_one = std::ranges::any_of(required->get_array(), [&](const json::value& name) {
      const json::value* declared = properties.if_contains(name.get_string());
      return looks_empty(declared == nullptr ? rest : *declared);
    });
    if (lacks_one) return true;
  }
  const json::value* least = part.if_contains("minProperties");
  if (least == nullptr || !looks_empty(rest)) return false;
  const auto may_be = [&](const auto& member) { return !looks_empty(member.value()); };
  return std::ranges::count_if(properties, may_be) < least->to_number<int64_t>();
}

}  // namespace quire::grammar
