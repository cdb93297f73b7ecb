#include "grammar/schema_parts.h"

#include <algorithm>
#include <utility>

#include "grammar/schema_words.h"
#include "grammar/typed_schema.h"

namespace quire::grammar {
namespace json = boost::json;

int64_t nodes(const json::value& value) {
  int64_t count = 1;
  if (const auto* list = value.if_array()) {
    for (const json::value& item : *list) count += nodes(item);
  } else if (const auto* object = value.if_object()) {
    for (const auto& member : *object) count += nodes(member.value());
  }
  return count;
}

json::array in_both(const json::array& a, const json::array& b) {
  json::array out;
  for (const json::value& value : a) {
    if (std::ranges::any_of(b, [&](const json::value& other) { return same_json(value, other); })) {
      out.push_back(value);
    }
  }
  return out;
}

json::value values_of(json::array values) {
  if (values.empty()) return false;
  return json::object{{"enum", std::move(values)}};
}

json::value any_of(json::array ways) {
  json::array out;
  for (json::value& way : ways) {
    if (way == json::value(true)) return true;
    if (way == json::value(false) || std::ranges::find(out, way) != out.end()) continue;
    out.push_back(std::move(way));
  }
  if (out.empty()) return false;
  if (out.size() == 1) return std::move(out.front());
  return json::object{{"anyOf", std::move(out)}};
}

json::value* choice(json::object& object) {
  json::value* ways = object.if_contains("anyOf");
  return ways != nullptr ? ways : object.if_contains("oneOf");
}

json::value excluding(json::array values) {
  json::object listed;
  listed["enum"] = std::move(values);
  return json::object{{"not", std::move(listed)}};
}

const json::array* excluded(const json::object& object) {
  const json::value* never = object.size() == 1 ? object.if_contains("not") : nullptr;
  return never == nullptr ? nullptr : &never->get_object().at("enum").get_array();
}

Result<json::value> strings_without(const json::object& schema, const json::array& values, std::string_view where) {
  json::object out = schema;
  const bool only_empty = std::ranges::all_of(values, [](const json::value& v) { return v.get_string().empty(); });
  const bool shaped = schema.contains("pattern") || schema.contains("format");
  const bool measured = schema.contains("minLength") || schema.contains("maxLength");
  if (only_empty && !shaped) {
    out["minLength"] = 1;
    return has_values(out, "string") ? with_type(std::move(out), "string") : json::value(false);
  }
  if (shaped || measured) {
    return invalid_argument(
        "in the schema at {}: \"not\" of strings beside pattern, format or a length cannot be heeded", where);
  }
  json::array all;
  if (const json::value* never = schema.if_contains("not")) all = never->get_object().at("enum").get_array();
  for (const json::value& value : values) all.push_back(value);
  out["not"] = json::object{{"enum", std::move(all)}};
  return with_type(std::move(out), "string");
}

bool always_evaluates(const Schema& whole, const json::value& part, std::string_view name, int levels) {
  const json::object* object = part.if_object();
  if (object == nullptr || levels == 0) return false;
  if (map_at(*object, "properties").contains(name) || object->contains("additionalProperties")) return true;
  if (object->contains("$ref") && always_evaluates(whole, whole.place(*object), name, levels - 1)) return true;
  const json::value* all = object->if_contains("allOf");
  return all != nullptr && std::ranges::any_of(all->get_array(), [&](const json::value& one) {
           return always_evaluates(whole, one, name, levels - 1);
         });
}

Result<std::string> ebnf_of_length(const Regex& regex, const json::object& schema, Spelling spelling) {
  const auto bound = [&](const char* name, int64_t otherwise) {
    const json::value* found = schema.if_contains(name);
    return found == nullptr ? otherwise : found->to_number<int64_t>();
  };
  const int64_t least = bound("minLength", 0);
  const int64_t most = bound("maxLength", -1);
  auto out = regex.ebnf(spelling, least, most);
  // What may repeat in it shares the characters that there are: of a format whose parts have lengths of their own, few
  // would leave hardly any text that anybody means.
  constexpr int64_t kFewest = 256;
  const bool is_cut_short = schema.contains("format") && most >= 0 && most < kFewest;
  if (!out || (is_cut_short && out != regex.ebnf(spelling, least, -1))) {
    return invalid_argument("no strings of its pattern or format with minLength to maxLength characters can be told");
  }
  return *std::move(out);
}

}  // namespace quire::grammar
