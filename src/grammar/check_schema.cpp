// A JSON schema, keyword by keyword. The grammar takes one shape a schema object ($ref, const, enum, anyOf, oneOf,
// allOf or a type with its keywords) and would ignore what stands beside it: in a plain schema that is refused by name,
// and so is every keyword that is not known. What only describes is let through. Others are made plain
// (plain_schema.h).
#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>

#include "grammar/check.h"
#include "grammar/formats.h"
#include "grammar/schema_words.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr std::array<std::string_view, 7> kShapes = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf", "type"};

constexpr std::array<std::string_view, 5> kNumberKeywords = {"minimum", "maximum", "exclusiveMinimum",
                                                             "exclusiveMaximum", "multipleOf"};
constexpr std::array<std::string_view, 4> kStringKeywords = {"minLength", "maxLength", "pattern", "format"};
constexpr std::array<std::string_view, 5> kArrayKeywords = {"items", "prefixItems", "minItems", "maxItems",
                                                            "unevaluatedItems"};
constexpr std::array<std::string_view, 8> kObjectKeywords = {
    "properties",        "required",      "additionalProperties", "unevaluatedProperties",
    "patternProperties", "propertyNames", "minProperties",        "maxProperties"};
template <size_t N>
bool is_one_of(std::string_view word, const std::array<std::string_view, N>& words) {
  return std::ranges::find(words, word) != words.end();
}

// Formats of numbers, which have no expression: only strings have.
bool is_integer_format(std::string_view name) {
  return name == "int32" || name == "int64";
}

class SchemaCheck {
 public:
  // combining: what is to be made plain.
  SchemaCheck(const json::value& root, const GrammarLimits& limits, bool combining)
      : root_(root), limits_(limits), combining_(combining) {}

  Status run() {
    QUIRE_RETURN_IF_ERROR(count(root_));
    return schema(root_, "#");
  }

 private:
  Status refuse(std::string_view where, std::string_view why) const {
    return invalid_argument("in the schema at {}: {}", where, why);
  }

  Status count(const json::value& value) {
    if (++nodes_ > limits_.max_schema_nodes) {
      return invalid_argument("the schema has more than {} values", limits_.max_schema_nodes);
    }
    if (const auto* object = value.if_object()) {
      for (const auto& member : *object) QUIRE_RETURN_IF_ERROR(count(member.value()));
    } else if (const auto* array = value.if_array()) {
      for (const json::value& item : *array) QUIRE_RETURN_IF_ERROR(count(item));
    }
    return {};
  }

  Status schema(const json::value& value, const std::string& where) {
    if (value.is_bool()) {
      if (value.get_bool() || combining_) return {};
      return refuse(where, "false, which nothing satisfies");
    }
    const auto* object = value.if_object();
    if (object == nullptr) return refuse(where, "a schema is an object or true");
    QUIRE_RETURN_IF_ERROR(one_shape(*object, where));
    QUIRE_RETURN_IF_ERROR(definitions(*object, where));
    if (combining_) return all_shapes(*object, where);
    if (const json::value* ref = object->if_contains("$ref")) return reference(*ref, where);
    if (const json::value* list = object->if_contains("enum")) return enumeration(*list, where);
    if (object->contains("const")) return {};
    for (const std::string_view name : {"anyOf", "oneOf", "allOf"}) {
      if (const json::value* list = object->if_contains(name)) return alternatives(name, *list, where);
    }
    return typed(*object, where);
  }

  Status all_shapes(const json::object& object, const std::string& where) {
    if (const json::value* ref = object.if_contains("$ref")) QUIRE_RETURN_IF_ERROR(reference(*ref, where));
    if (const json::value* list = object.if_contains("enum")) QUIRE_RETURN_IF_ERROR(enumeration(*list, where));
    for (const std::string_view name : {"anyOf", "oneOf", "allOf"}) {
      const json::value* list = object.if_contains(name);
      if (list != nullptr) QUIRE_RETURN_IF_ERROR(alternatives(name, *list, where));
    }
    for (const std::string_view name : {"not", "if", "then", "else"}) {
      const json::value* inner = object.if_contains(name);
      if (inner != nullptr) QUIRE_RETURN_IF_ERROR(schema(*inner, fmt::format("{}/{}", where, name)));
    }
    return typed(object, where);
  }

  // Of a plain schema: strings that a string must not be.
  static bool excludes_strings(const json::object& object) {
    const json::value* never = object.if_contains("not");
    const auto* inner = never == nullptr ? nullptr : never->if_object();
    const json::value* values = inner == nullptr || inner->size() != 1 ? nullptr : inner->if_contains("enum");
    const auto* list = values == nullptr ? nullptr : values->if_array();
    return list != nullptr && !list->empty() && object.contains("type") && !object.contains("pattern") &&
           !object.contains("format") && !object.contains("minLength") && !object.contains("maxLength") &&
           std::ranges::all_of(*list, [](const json::value& value) { return value.is_string(); });
  }

  // Everything beside the shape must describe only, or belong to the type.
  Status one_shape(const json::object& object, const std::string& where) const {
    std::string_view shape;
    for (const std::string_view name : kShapes) {
      if (!object.contains(name) || combining_) continue;
      if (shape.empty()) {
        shape = name;
      } else if (name != "type" || (shape != "const" && shape != "enum") || !agrees_with_type(object, shape)) {
        return refuse(where, fmt::format("{} beside {}: only one of the two would be heeded. Put one inside the other, "
                                         "or leave it out",
                                         name, shape));
      }
    }
    for (const auto& member : object) {
      const std::string_view name = member.key();
      if (is_annotation(name) || is_one_of(name, kShapes)) continue;
      if (combining_ && (name == "not" || name == "if" || name == "then" || name == "else")) continue;
      if (name == "not" && shape == "type" && excludes_strings(object)) continue;
      const bool of_a_type = is_one_of(name, kNumberKeywords) || is_one_of(name, kStringKeywords) ||
                             is_one_of(name, kArrayKeywords) || is_one_of(name, kObjectKeywords);
      if (!of_a_type) return refuse(where, fmt::format("the keyword \"{}\" is not supported", name));
      if (!shape.empty() && shape != "type") {
        return refuse(where, fmt::format("\"{}\" beside {} would not be heeded", name, shape));
      }
    }
    return {};
  }

  // A type beside const or enum is fine where it says nothing new.
  static bool agrees_with_type(const json::object& object, std::string_view shape) {
    const json::value& type = object.at("type");
    const auto fits = [&](const json::value& value) {
      if (type.is_string()) return value_has_type(value, type.get_string());
      const auto* types = type.if_array();
      return types != nullptr && std::ranges::any_of(*types, [&](const json::value& one) {
               return one.is_string() && value_has_type(value, one.get_string());
             });
    };
    if (shape == "const") return fits(object.at("const"));
    const auto* list = object.at("enum").if_array();
    return list != nullptr && std::ranges::all_of(*list, fits);
  }

  Status definitions(const json::object& object, const std::string& where) {
    for (const std::string_view name : {"$defs", "definitions"}) {
      const json::value* defs = object.if_contains(name);
      if (defs == nullptr) continue;
      if (!defs->is_object()) return refuse(where, fmt::format("{} must be an object", name));
      for (const auto& member : defs->get_object()) {
        if (member.value() == json::value(false)) continue;  // who refers to it is looked at
        QUIRE_RETURN_IF_ERROR(
            schema(member.value(), fmt::format("{}/{}/{}", where, name, std::string_view(member.key()))));
      }
    }
    return {};
  }

  // References go to places in the schema itself; their targets are checked where they stand. What refers to itself
  // without a value in between would never end.
  Status reference(const json::value& ref, const std::string& where) {
    const json::value* target = nullptr;
    std::unordered_set<std::string> passed;
    const json::value* next = &ref;
    while (next != nullptr) {
      const auto* text = next->if_string();
      if (text == nullptr) return refuse(where, "$ref must be a string");
      const std::string uri(*text);
      if (!uri.starts_with('#') || (uri.size() > 1 && uri[1] != '/')) {
        return refuse(where, fmt::format("$ref \"{}\": only places in the schema itself (\"#/$defs/...\") are followed",
                                         uri.substr(0, 200)));
      }
      if (!passed.insert(uri).second) return refuse(where, fmt::format("$ref \"{}\" comes back to itself", uri));
      boost::system::error_code error;
      target = uri == "#" ? &root_ : root_.find_pointer(uri.substr(1), error);
      if (target == nullptr) return refuse(where, fmt::format("$ref \"{}\" leads nowhere", uri.substr(0, 200)));
      const auto* object = target->if_object();
      next = object == nullptr ? nullptr : object->if_contains("$ref");
    }
    // A place that is no schema's (for example "#/properties") was not visited otherwise.
    if (!visited_.insert(target).second || *target == json::value(false)) return {};
    return visit_once(*target, where);
  }

  Status visit_once(const json::value& target, const std::string& where) {
    if (depth_ > limits_.max_depth) return refuse(where, "references more than 64 deep");
    ++depth_;
    const Status status = schema(target, where);
    --depth_;
    return status;
  }

  Status enumeration(const json::value& list, const std::string& where) const {
    const auto* values = list.if_array();
    if (values == nullptr || values->empty()) return refuse(where, "enum must be a list of at least one value");
    if (static_cast<int64_t>(values->size()) > limits_.max_alternatives) {
      return refuse(where,
                    fmt::format("enum has {} values; at most {} are taken", values->size(), limits_.max_alternatives));
    }
    return {};
  }

  Status alternatives(std::string_view name, const json::value& value, const std::string& where) {
    const auto* list = value.if_array();
    if (list == nullptr || list->empty()) {
      return refuse(where, fmt::format("{} must be a list of at least one schema", name));
    }
    if (name == "allOf" && list->size() > 1 && !combining_) {
      return refuse(where, "allOf of more than one schema is not supported: write them as one");
    }
    for (size_t i = 0; i < list->size(); ++i) {
      QUIRE_RETURN_IF_ERROR(schema((*list)[i], fmt::format("{}/{}/{}", where, name, i)));
    }
    return {};
  }

  Status typed(const json::object& object, const std::string& where) {
    const json::value* type = object.if_contains("type");
    std::vector<std::string_view> types;
    if (type != nullptr && type->is_string()) {
      types.emplace_back(type->get_string());
    } else if (type != nullptr) {
      const auto* list = type->if_array();
      if (list == nullptr || list->empty()) return refuse(where, "type must be a name or a list of names");
      for (const json::value& one : *list) {
        if (!one.is_string()) return refuse(where, "type must be a name or a list of names");
        types.emplace_back(one.get_string());
      }
    }
    constexpr std::array<std::string_view, 7> kTypes = {"null",   "boolean", "integer", "number",
                                                        "string", "array",   "object"};
    for (const std::string_view one : types) {
      if (!is_one_of(one, kTypes)) return refuse(where, fmt::format("there is no type \"{}\"", one));
    }
    if (!combining_) QUIRE_RETURN_IF_ERROR(belongs(object, types, where));
    QUIRE_RETURN_IF_ERROR(numbers(object, where));
    QUIRE_RETURN_IF_ERROR(strings(object, where));
    QUIRE_RETURN_IF_ERROR(arrays(object, where));
    return objects(object, where);
  }

  // JSON schema lets keywords of other types stand without effect; a keyword without any type would leave the other
  // types free, which the grammar cannot tell from a mistake.
  Status belongs(const json::object& object, const std::vector<std::string_view>& types,
                 const std::string& where) const {
    if (!types.empty()) return {};
    for (const auto& member : object) {
      const std::string_view name = member.key();
      if (is_one_of(name, kNumberKeywords) || is_one_of(name, kStringKeywords) || name == "minItems" ||
          name == "maxItems" || name == "required" || name == "minProperties" || name == "maxProperties" ||
          name == "patternProperties" || name == "propertyNames") {
        if (object.contains("properties") || object.contains("additionalProperties") || object.contains("items") ||
            object.contains("prefixItems")) {
          continue;
        }
        return refuse(where, fmt::format("\"{}\" needs a \"type\" beside it", name));
      }
    }
    return {};
  }

  Result<double> number(const json::value& value, std::string_view name, const std::string& where) const {
    if (!value.is_number()) return refuse(where, fmt::format("{} must be a number", name));
    const double number = value.to_number<double>();
    if (!std::isfinite(number) || std::abs(number) > 9e15) {
      return refuse(where, fmt::format("{} is {}; it must be within 9e15 of 0", name, number));
    }
    return number;
  }

  Status numbers(const json::object& object, const std::string& where) const {
    for (const std::string_view name : kNumberKeywords) {
      const json::value* value = object.if_contains(name);
      if (value == nullptr) continue;
      QUIRE_RETURN_IF_ERROR(number(*value, name, where).status());
    }
    return {};
  }

  Status counted(const json::object& object, std::string_view name, const std::string& where) const {
    const json::value* value = object.if_contains(name);
    if (value == nullptr) return {};
    const auto* count = value->if_int64();
    if (count == nullptr || *count < 0) return refuse(where, fmt::format("{} must be a whole number from 0", name));
    if (*count <= limits_.max_count) return {};
    return refuse(where, fmt::format("{} is {}; at most {} is taken", name, *count, limits_.max_count));
  }

  Status strings(const json::object& object, const std::string& where) const {
    QUIRE_RETURN_IF_ERROR(counted(object, "minLength", where));
    QUIRE_RETURN_IF_ERROR(counted(object, "maxLength", where));
    const json::value* pattern = object.if_contains("pattern");
    const json::value* format = object.if_contains("format");
    if (format != nullptr) {
      const std::string_view name = format->is_string() ? std::string_view(format->get_string()) : std::string_view();
      if (format_pattern(name).empty() && !is_integer_format(name)) {
        return refuse(where, fmt::format("the format {} is not supported", json::serialize(*format)));
      }
      if (!combining_ && pattern != nullptr) return refuse(where, "a pattern beside format would not be heeded");
    }
    if (pattern == nullptr) return {};
    if (!pattern->is_string()) return refuse(where, "pattern must be a string");
    const Status status = check_regex(pattern->get_string(), limits_);
    return status.ok() ? status : refuse(where + "/pattern", status.message());
  }

  Status arrays(const json::object& object, const std::string& where) {
    QUIRE_RETURN_IF_ERROR(counted(object, "minItems", where));
    QUIRE_RETURN_IF_ERROR(counted(object, "maxItems", where));
    if (const json::value* items = object.if_contains("prefixItems")) {
      const auto* list = items->if_array();
      if (list == nullptr) return refuse(where, "prefixItems must be a list of schemas");
      for (size_t i = 0; i < list->size(); ++i) {
        if ((*list)[i] == json::value(false)) continue;  // an array ends before it
        QUIRE_RETURN_IF_ERROR(schema((*list)[i], fmt::format("{}/prefixItems/{}", where, i)));
      }
    }
    for (const std::string_view name : {"items", "unevaluatedItems"}) {
      const json::value* items = object.if_contains(name);
      if (items == nullptr || items->is_bool()) continue;
      QUIRE_RETURN_IF_ERROR(schema(*items, fmt::format("{}/{}", where, name)));
    }
    return {};
  }

  Status objects(const json::object& object, const std::string& where) {
    QUIRE_RETURN_IF_ERROR(counted(object, "minProperties", where));
    QUIRE_RETURN_IF_ERROR(counted(object, "maxProperties", where));
    if (const json::value* required = object.if_contains("required")) {
      const auto* names = required->if_array();
      const auto is_string = [](const json::value& name) { return name.is_string(); };
      if (names == nullptr || !std::ranges::all_of(*names, is_string)) {
        return refuse(where, "required must be a list of strings");
      }
    }
    for (const std::string_view name : {"properties", "patternProperties"}) {
      const json::value* members = object.if_contains(name);
      if (members == nullptr) continue;
      if (!members->is_object()) return refuse(where, fmt::format("{} must be an object", name));
      for (const auto& member : members->get_object()) {
        const std::string_view key = member.key();
        const std::string place = fmt::format("{}/{}/{}", where, name, key);
        if (name == "patternProperties") {
          const Status status = check_regex(key, limits_);
          if (!status.ok()) return refuse(place, status.message());
        }
        if (member.value() == json::value(false)) continue;  // it never is there
        QUIRE_RETURN_IF_ERROR(schema(member.value(), place));
      }
    }
    if (!combining_) QUIRE_RETURN_IF_ERROR(pattern_properties(object, where));
    for (const std::string_view name : {"additionalProperties", "unevaluatedProperties", "propertyNames"}) {
      const json::value* value = object.if_contains(name);
      if (value == nullptr || value->is_bool()) continue;
      if (name == "propertyNames" && value->is_object() && !value->get_object().contains("type")) {
        json::object names = value->get_object();  // a name is a string, said or not
        const bool shaped = std::ranges::any_of(kShapes, [&](std::string_view shape) { return names.contains(shape); });
        if (!shaped) names["type"] = "string";
        QUIRE_RETURN_IF_ERROR(schema(names, fmt::format("{}/{}", where, name)));
        continue;
      }
      QUIRE_RETURN_IF_ERROR(schema(*value, fmt::format("{}/{}", where, name)));
    }
    return {};
  }

  // A name may match several of them, and then must satisfy all; the grammar would take any.
  Status pattern_properties(const json::object& object, const std::string& where) const {
    const json::value* patterns = object.if_contains("patternProperties");
    if (patterns == nullptr) return {};
    if (patterns->get_object().size() > 1) {
      return refuse(where, "patternProperties of more than one pattern are not supported");
    }
    for (const std::string_view other : {"properties", "propertyNames"}) {
      if (object.contains(other)) {
        return refuse(where, fmt::format("patternProperties beside {} are not supported", other));
      }
    }
    const json::value* additional = object.if_contains("additionalProperties");
    if (additional == nullptr || (additional->is_bool() && !additional->get_bool())) return {};
    return refuse(where, "patternProperties need additionalProperties to be false");
  }

  const json::value& root_;
  const GrammarLimits& limits_;
  const bool combining_;
  std::unordered_set<const json::value*> visited_;
  int64_t nodes_ = 0;
  int64_t depth_ = 0;
};

}  // namespace

Status check_plain_schema(const json::value& schema, const GrammarLimits& limits) {
  return SchemaCheck(schema, limits, false).run();
}

Status check_schema_words(const json::value& schema, const GrammarLimits& limits) {
  return SchemaCheck(schema, limits, true).run();
}

}  // namespace quire::grammar
