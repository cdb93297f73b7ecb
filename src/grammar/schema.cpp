#include "grammar/schema.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/parse_json.h"
#include "grammar/formats.h"
#include "grammar/plain_schema.h"
#include "grammar/schema_words.h"
#include "text/utf8.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

size_t code_points(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// The values that a schema lists.
std::optional<std::vector<const json::value*>> listed(const json::object& schema) {
  std::vector<const json::value*> values;
  if (const json::value* one = schema.if_contains("const")) {
    values.push_back(one);
  } else if (const json::value* list = schema.if_contains("enum")) {
    for (const json::value& value : list->get_array()) values.push_back(&value);
  } else {
    return std::nullopt;
  }
  return values;
}

bool is_required(const json::object& schema, std::string_view name) {
  const json::value* required = schema.if_contains("required");
  return required != nullptr && std::ranges::any_of(required->get_array(), [name](const json::value& one) {
           return std::string_view(one.get_string()) == name;
         });
}

}  // namespace

bool same_json(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_double() || b.is_double() ? a.to_number<double>() == b.to_number<double>() : a == b;
  }
  if (a.is_array() && b.is_array()) return std::ranges::equal(a.get_array(), b.get_array(), same_json);
  if (a.is_object() && b.is_object()) {
    const json::object& other = b.get_object();
    return a.get_object().size() == other.size() && std::ranges::all_of(a.get_object(), [&](const auto& member) {
             const json::value* beside = other.if_contains(member.key());
             return beside != nullptr && same_json(member.value(), *beside);
           });
  }
  return a == b;
}

// By JSON schema's rules, of a value that is all there.
class SchemaValidator {
 public:
  SchemaValidator(const Schema& schema, bool loosely) : schema_(schema), loosely_(loosely) {}

  Status check(const json::value& schema, const json::value& value, const std::string& where) const {
    if (schema.is_bool()) return schema.get_bool() ? Status() : broken(where, "nothing is allowed there");
    // Schemas that combine each other without end are refused when they are made plain; this one may be on its way.
    if (depth_ > kMostCombined) return broken(where, "its schema combines others too deeply");
    const json::object& object = schema.get_object();
    // Those that combine are asked for again by who combines them, at each level twice.
    const bool is_kept = keeps_ && combines(object);
    const Place place{&schema, &value};
    if (is_kept) {
      if (const auto found = checked_.find(place); found != checked_.end()) return found->second;
    }
    ++depth_;
    Status status = keywords(object, value, where);
    --depth_;
    if (is_kept) checked_.emplace(place, status);
    return status;
  }

 private:
  static constexpr int kMostCombined = 4 * kMostAnswerLevels;
  using Place = std::pair<const void*, const void*>;  // of the schema, and of what is held against it

  Status keywords(const json::object& object, const json::value& value, const std::string& where) const {
    if (object.contains("$ref")) QUIRE_RETURN_IF_ERROR(check(schema_.place(object), value, where));
    if (const json::value* one = object.if_contains("const"); one != nullptr && !same_json(*one, value)) {
      return broken(where, "it is not the constant");
    }
    if (const json::value* list = object.if_contains("enum")) {
      const auto same = [&value](const json::value& one) { return same_json(one, value); };
      if (std::ranges::none_of(list->get_array(), same)) return broken(where, "it is none of enum's values");
    }
    QUIRE_RETURN_IF_ERROR(combined(object, value, where));
    const auto types = named_types(object);
    if (!types.empty() &&
        std::ranges::none_of(types, [&](std::string_view type) { return value_has_type(value, type); })) {
      return broken(where, "it is of another type");
    }
    if (value.is_number()) return number(object, value, where);
    if (value.is_string()) return string(object, value.get_string(), where);
    if (value.is_array()) {
      QUIRE_RETURN_IF_ERROR(array(object, value.get_array(), where));
      return unevaluated_items(object, value, where);
    }
    if (!value.is_object()) return {};
    QUIRE_RETURN_IF_ERROR(members(object, value.get_object(), where));
    return unevaluated(object, value, where);
  }

  static Status broken(std::string_view where, std::string_view why) {
    return data_loss("the answer breaks its schema at {}: {}", where.substr(0, 200), why);
  }

  // A pattern that stands where none was read matches nothing.
  bool matches(std::string_view pattern, std::string_view text) const {
    const Regex* regex = schema_.regex(pattern);
    return regex != nullptr && regex->matches(text);
  }

  Status combined(const json::object& schema, const json::value& value, const std::string& where) const {
    const auto satisfied = [&](const json::array& list) {
      return std::ranges::count_if(list, [&](const json::value& one) { return check(one, value, where).ok(); });
    };
    if (const json::value* list = schema.if_contains("anyOf"); list != nullptr && satisfied(list->get_array()) == 0) {
      return broken(where, "it satisfies none of anyOf");
    }
    if (const json::value* list = schema.if_contains("oneOf")) {
      const auto count = satisfied(list->get_array());
      if (count == 0 || (count > 1 && !loosely_)) return broken(where, "it does not satisfy one of oneOf");
    }
    if (const json::value* list = schema.if_contains("allOf")) {
      for (const json::value& one : list->get_array()) QUIRE_RETURN_IF_ERROR(check(one, value, where));
    }
    return conditions(schema, value, where);
  }

  // Loosely a pattern's negation cannot be told, so that all of them count as satisfied.
  Status conditions(const json::object& schema, const json::value& value, const std::string& where) const {
    if (loosely_) return {};
    if (const json::value* never = schema.if_contains("not"); never != nullptr && check(*never, value, where).ok()) {
      return broken(where, "it satisfies what it must not");
    }
    if (const json::value* condition = schema.if_contains("if")) {
      const json::value* branch = schema.if_contains(check(*condition, value, where).ok() ? "then" : "else");
      if (branch != nullptr) return check(*branch, value, where);
    }
    return {};
  }

  static Status number(const json::object& schema, const json::value& value, const std::string& where) {
    // Integers beyond a double's are compared as they are where both sides are.
    const auto compare = [&value](const json::value& bound) {
      if (value.is_int64() && bound.is_int64()) {
        return value.get_int64() < bound.get_int64() ? -1 : value.get_int64() > bound.get_int64() ? 1 : 0;
      }
      const double difference = value.to_number<double>() - bound.to_number<double>();
      return difference < 0 ? -1 : difference > 0 ? 1 : 0;
    };
    const json::value* bound = nullptr;
    if ((bound = schema.if_contains("minimum")) != nullptr && compare(*bound) < 0) return broken(where, "too small");
    if ((bound = schema.if_contains("maximum")) != nullptr && compare(*bound) > 0) return broken(where, "too large");
    if ((bound = schema.if_contains("exclusiveMinimum")) != nullptr && compare(*bound) <= 0) {
      return broken(where, "too small");
    }
    if ((bound = schema.if_contains("exclusiveMaximum")) != nullptr && compare(*bound) >= 0) {
      return broken(where, "too large");
    }
    if ((bound = schema.if_contains("multipleOf")) != nullptr &&
        std::fmod(value.to_number<double>(), bound->to_number<double>()) != 0) {
      return broken(where, "it is no multiple");
    }
    return {};
  }

  Status string(const json::object& schema, std::string_view value, const std::string& where) const {
    const size_t length = code_points(value);
    const json::value* bound = nullptr;
    if ((bound = schema.if_contains("minLength")) != nullptr && length < bound->to_number<size_t>()) {
      return broken(where, "too short");
    }
    if ((bound = schema.if_contains("maxLength")) != nullptr && length > bound->to_number<size_t>()) {
      return broken(where, "too long");
    }
    if (loosely_) return {};
    if (const json::value* pattern = schema.if_contains("pattern")) {
      if (!matches(pattern->get_string(), value)) return broken(where, "it does not match the pattern");
    }
    if (const json::value* format = schema.if_contains("format")) {
      const std::string_view expected = format_pattern(format->get_string());
      if (!expected.empty() && !matches(expected, value)) {
        return broken(where, "it is not of the format");
      }
    }
    return {};
  }

  Status array(const json::object& schema, const json::array& value, const std::string& where) const {
    const json::value* bound = nullptr;
    if ((bound = schema.if_contains("minItems")) != nullptr && value.size() < bound->to_number<size_t>()) {
      return broken(where, "too few items");
    }
    if ((bound = schema.if_contains("maxItems")) != nullptr && value.size() > bound->to_number<size_t>()) {
      return broken(where, "too many items");
    }
    const json::value* prefix = schema.if_contains("prefixItems");
    const size_t num_prefix = prefix == nullptr ? 0 : prefix->get_array().size();
    const json::value* items = schema.if_contains("items");
    for (size_t i = 0; i < value.size(); ++i) {
      const json::value* item = i < num_prefix ? &prefix->get_array()[i] : items;
      if (item != nullptr) QUIRE_RETURN_IF_ERROR(check(*item, value[i], fmt::format("{}/{}", where, i)));
    }
    return {};
  }

  Status unevaluated_items(const json::object& schema, const json::value& value, const std::string& where) const {
    const json::value* rest = schema.if_contains("unevaluatedItems");
    if (rest == nullptr || (loosely_ && combines(schema))) return {};
    const json::array& items = value.get_array();
    for (size_t i = num_evaluated(schema, value, where, /*with_rest=*/false); i < items.size(); ++i) {
      QUIRE_RETURN_IF_ERROR(check(*rest, items[i], fmt::format("{}/{}", where, i)));
    }
    return {};
  }

  // Of the array `whole`, the first items that parts of the schema which it satisfies have looked at.
  size_t num_evaluated(const json::object& schema, const json::value& whole, const std::string& where,
                       bool with_rest) const {
    if (depth_ > kMostCombined) return 0;
    const size_t all = whole.get_array().size();
    if (schema.contains("items") || (with_rest && schema.contains("unevaluatedItems"))) return all;
    const Place place{&schema, &whole};
    if (const auto found = num_evaluated_.find(place); found != num_evaluated_.end()) return found->second;
    const json::value* prefix = schema.if_contains("prefixItems");
    size_t count = prefix == nullptr ? 0 : std::min(all, prefix->get_array().size());
    ++depth_;
    const auto part = [&](const json::value& one) {
      const bool holds = check(one, whole, where).ok();
      if (holds && one.is_object())
        count = std::max(count, num_evaluated(one.get_object(), whole, where, /*with_rest=*/true));
      return holds;
    };
    for (const char* name : {"allOf", "anyOf", "oneOf"}) {
      const json::value* list = schema.if_contains(name);
      if (list != nullptr) std::ranges::for_each(list->get_array(), part);
    }
    if (const json::value* condition = schema.if_contains("if")) {
      const json::value* branch = schema.if_contains(part(*condition) ? "then" : "else");
      if (branch != nullptr) part(*branch);
    }
    if (schema.contains("$ref")) part(schema_.place(schema));
    --depth_;
    return num_evaluated_[place] = count;
  }

  Status members(const json::object& schema, const json::object& value, const std::string& where) const {
    const json::value* bound = nullptr;
    if ((bound = schema.if_contains("minProperties")) != nullptr && value.size() < bound->to_number<size_t>()) {
      return broken(where, "too few properties");
    }
    if ((bound = schema.if_contains("maxProperties")) != nullptr && value.size() > bound->to_number<size_t>()) {
      return broken(where, "too many properties");
    }
    if (const json::value* required = schema.if_contains("required")) {
      for (const json::value& name : required->get_array()) {
        if (!value.contains(name.get_string())) return broken(where, "a required property is missing");
      }
    }
    for (const auto& entry : value) {
      const std::string_view name = entry.key();
      QUIRE_RETURN_IF_ERROR(member(schema, name, entry.value(), fmt::format("{}/{}", where, name)));
    }
    return {};
  }

  Status unevaluated(const json::object& schema, const json::value& value, const std::string& where) const {
    const json::value* rest = schema.if_contains("unevaluatedProperties");
    if (rest == nullptr || loosely_) return {};
    for (const auto& entry : value.get_object()) {
      const std::string_view name = entry.key();
      if (evaluates(schema, name, value, where, /*with_rest=*/false)) continue;
      QUIRE_RETURN_IF_ERROR(check(*rest, entry.value(), fmt::format("{}/{}", where, name)));
    }
    return {};
  }

  // Has a part of the schema that `whole` satisfies looked at its property `name`?
  bool evaluates(const json::object& schema, std::string_view name, const json::value& whole, const std::string& where,
                 bool with_rest) const {
    if (depth_ > kMostCombined) return false;
    if (schema.contains("additionalProperties") || (with_rest && schema.contains("unevaluatedProperties"))) {
      return true;
    }
    const std::pair place{Place{&schema, &whole}, static_cast<const void*>(name.data())};
    if (const auto known = evaluates_.find(place); known != evaluates_.end()) return known->second;
    const auto has = [&](const char* keyword, const auto& is_it) {
      const json::value* found = schema.if_contains(keyword);
      return found != nullptr && is_it(*found);
    };
    ++depth_;
    const auto looks = [&](const json::value& one) {
      return one.is_object() && evaluates(one.get_object(), name, whole, where, /*with_rest=*/true);
    };
    const auto part = [&](const json::value& one) { return check(one, whole, where).ok() && looks(one); };
    const auto parts = [&](const json::value& list) { return std::ranges::any_of(list.get_array(), part); };
    const auto patterns = [&](const json::value& map) {
      return std::ranges::any_of(map.get_object(), [&](const auto& one) { return matches(one.key(), name); });
    };
    const auto condition = [&](const json::value& one) {
      const bool holds = check(one, whole, where).ok();
      return (holds && looks(one)) || has(holds ? "then" : "else", part);
    };
    const bool found = has("properties", [&](const json::value& map) { return map.get_object().contains(name); }) ||
                       has("patternProperties", patterns) || has("allOf", parts) || has("anyOf", parts) ||
                       has("oneOf", parts) || has("if", condition) ||
                       (schema.contains("$ref") && part(schema_.place(schema)));
    --depth_;
    return evaluates_[place] = found;
  }

  Status member(const json::object& schema, std::string_view name, const json::value& value,
                const std::string& where) const {
    if (const json::value* names = schema.if_contains("propertyNames")) {
      const bool keeps = std::exchange(keeps_, false);  // of this value nothing is: it goes again
      const Status named = check(*names, json::value(json::string(name)), where);
      keeps_ = keeps;
      QUIRE_RETURN_IF_ERROR(named);
    }
    bool known = false;
    if (const json::value* properties = schema.if_contains("properties")) {
      if (const json::value* declared = properties->get_object().if_contains(name)) {
        known = true;
        QUIRE_RETURN_IF_ERROR(check(*declared, value, where));
      }
    }
    if (const json::value* patterns = schema.if_contains("patternProperties")) {
      for (const auto& pattern : patterns->get_object()) {
        if (loosely_) return {};
        if (!matches(pattern.key(), name)) continue;
        known = true;
        QUIRE_RETURN_IF_ERROR(check(pattern.value(), value, where));
      }
    }
    if (known) return {};
    const json::value* rest = schema.if_contains("additionalProperties");
    return rest == nullptr ? Status() : check(*rest, value, where);
  }

  const Schema& schema_;
  bool loosely_;
  mutable int depth_ = 0;
  // What has been found, so that time is that of the schema's parts and the answer's, and not of the ways between them.
  mutable bool keeps_ = true;
  mutable std::map<Place, Status> checked_;
  mutable std::map<Place, size_t> num_evaluated_;
  mutable std::map<std::pair<Place, const void*>, bool> evaluates_;  // of a property by its name's place
};

Result<json::value> parse_answer(std::string_view text) {
  boost::system::error_code error;
  json::value value = parse_json(text, error, {.max_depth = kMostAnswerLevels});
  if (error) return data_loss("the answer is no JSON: {}", error.message());
  return value;
}

std::string json_text(const json::value& value) {
  switch (value.kind()) {
    case json::kind::double_:
      return fmt::format("{}", value.get_double());
    case json::kind::array: {
      std::vector<std::string> items;
      for (const json::value& item : value.get_array()) items.push_back(json_text(item));
      return fmt::format("[{}]", fmt::join(items, ","));
    }
    case json::kind::object: {
      std::vector<std::string> members;
      for (const auto& member : value.get_object()) {
        members.push_back(json::serialize(json::value(json::string(member.key()))) + ":" + json_text(member.value()));
      }
      return fmt::format("{{{}}}", fmt::join(members, ","));
    }
    default:
      return json::serialize(value);
  }
}

Status Schema::read_pattern(std::string_view pattern) {
  if (regexes_.contains(std::string(pattern))) return {};
  auto regex = Regex::parse(pattern, limits_);
  if (!regex.ok()) {
    return invalid_argument("in the schema, pattern {}: {}",
                            json::serialize(json::value(json::string(pattern.substr(0, 200)))),
                            regex.status().message());
  }
  regexes_.emplace(pattern, std::move(regex).value());
  return {};
}

// Wherever a schema may stand.
Status Schema::read_patterns(const json::value& value) {
  if (const auto* array = value.if_array()) {
    for (const json::value& item : *array) QUIRE_RETURN_IF_ERROR(read_patterns(item));
  }
  const auto* object = value.if_object();
  if (object == nullptr) return {};
  for (const auto& member : *object) {
    const std::string_view name = member.key();
    const json::value& inner = member.value();
    if (name == "enum" || name == "const" || name == "default" || name == "examples" || name == "example") continue;
    if (name == "pattern" && inner.is_string()) QUIRE_RETURN_IF_ERROR(read_pattern(inner.get_string()));
    if (name == "format" && inner.is_string()) {
      const std::string_view pattern = format_pattern(inner.get_string());
      if (!pattern.empty()) QUIRE_RETURN_IF_ERROR(read_pattern(pattern));
    }
    const bool is_map = name == "properties" || name == "patternProperties" || name == "$defs" || name == "definitions";
    if (!is_map || !inner.is_object()) {
      QUIRE_RETURN_IF_ERROR(read_patterns(inner));
      continue;
    }
    for (const auto& entry : inner.get_object()) {
      if (name == "patternProperties") QUIRE_RETURN_IF_ERROR(read_pattern(entry.key()));
      QUIRE_RETURN_IF_ERROR(read_patterns(entry.value()));
    }
  }
  return {};
}

Result<std::shared_ptr<const Schema>> Schema::parse(std::string_view text, const GrammarLimits& limits) {
  boost::system::error_code error;
  json::value root = parse_json(text, error, {.max_depth = static_cast<size_t>(limits.max_depth)});
  if (error) {
    return invalid_argument("the schema is no JSON of at most {} levels: {}", limits.max_depth, error.message());
  }
  return from(std::move(root), limits);
}

Result<std::shared_ptr<const Schema>> Schema::from(json::value root, const GrammarLimits& limits) {
  const bool is_plain = check_plain_schema(root, limits).ok();
  if (!is_plain) QUIRE_RETURN_IF_ERROR(check_schema_words(root, limits));
  std::shared_ptr<Schema> schema(new Schema(std::move(root), limits));
  QUIRE_RETURN_IF_ERROR(schema->read_patterns(schema->root_));
  if (is_plain) return std::shared_ptr<const Schema>(std::move(schema));
  QUIRE_ASSIGN_OR_RETURN(json::value plain, plain_schema(*schema));
  QUIRE_RETURN_IF_ERROR(check_plain_schema(plain, limits));
  std::shared_ptr<Schema> made(new Schema(std::move(plain), limits));
  QUIRE_RETURN_IF_ERROR(made->read_patterns(made->root_));
  made->asked_ = std::move(schema);
  return std::shared_ptr<const Schema>(std::move(made));
}

Status check_json_schema(const json::value& schema, const GrammarLimits& limits) {
  return Schema::from(schema, limits).status();
}

Status check_whole_schema(const json::value& schema, const GrammarLimits& limits) {
  QUIRE_ASSIGN_OR_RETURN(const auto parsed, Schema::parse(json::serialize(schema), limits));
  return parsed->ebnf(true).status();
}

const json::value& Schema::resolved(const json::value& schema) const {
  const json::value* at = &schema;
  while (at->is_object() && at->get_object().contains("$ref")) at = &place(at->get_object());
  return *at;
}

const json::value& Schema::place(const json::object& reference) const {
  const std::string_view uri = reference.at("$ref").get_string();
  boost::system::error_code error;
  const json::value* at = uri == "#" ? &root_ : root_.find_pointer(uri.substr(1), error);
  QUIRE_CHECK(at != nullptr);  // it was followed before
  return *at;
}

const Regex* Schema::regex(std::string_view pattern) const {
  const auto found = regexes_.find(std::string(pattern));
  return found == regexes_.end() ? nullptr : &found->second;
}

Status Schema::check(const json::value& schema, const json::value& value, const std::string& where,
                     bool loosely) const {
  return SchemaValidator(*this, loosely).check(schema, value, where);
}

Status Schema::validate(const json::value& value) const {
  return asked_ != nullptr ? asked_->validate(value) : check(root_, value, "$", false);
}

bool Schema::satisfies(const json::value& part, const json::value& value) const {
  return check(part, value, "$", false).ok();
}

Status Schema::validate_text(std::string_view text) const {
  QUIRE_ASSIGN_OR_RETURN(const json::value value, parse_answer(text));
  return validate(value);
}

bool Schema::disjoint(const json::value& one, const json::value& other) const {
  const json::value& a = resolved(one);
  const json::value& b = resolved(other);
  if (&a == &b || !a.is_object() || !b.is_object()) return false;
  const json::object& first = a.get_object();
  const json::object& second = b.get_object();
  for (const auto& [finite, open] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    const auto values = listed(finite->get_object());
    if (!values) continue;
    const json::value& target = *open;
    return std::ranges::none_of(*values,
                                [&](const json::value* value) { return check(target, *value, "$", true).ok(); });
  }
  const auto types = named_types(first);
  const auto others = named_types(second);
  if (types.empty() || others.empty()) return false;
  const auto same = [](std::string_view x, std::string_view y) {
    const auto is_number = [](std::string_view type) { return type == "integer" || type == "number"; };
    return x == y || (is_number(x) && is_number(y));
  };
  std::set<std::string_view> shared;
  for (const std::string_view x : types) {
    for (const std::string_view y : others) {
      if (same(x, y)) shared.insert(x);
    }
  }
  if (shared.empty()) return true;
  if (shared.size() > 1 || *shared.begin() != "object") return false;
  // Objects: a property that both require and on which no value satisfies both.
  const json::value* properties = first.if_contains("properties");
  const json::value* others_properties = second.if_contains("properties");
  if (properties == nullptr || others_properties == nullptr) return false;
  for (const auto& member : properties->get_object()) {
    const json::value* beside = others_properties->get_object().if_contains(member.key());
    if (beside == nullptr || !is_required(first, member.key()) || !is_required(second, member.key())) continue;
    // One level: what lists its values, against the like.
    const json::value& value = resolved(member.value());
    if (value.is_object() && listed(value.get_object()) && disjoint(value, *beside)) return true;
  }
  return false;
}

}  // namespace quire::grammar
