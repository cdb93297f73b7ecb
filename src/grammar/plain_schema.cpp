#include "grammar/plain_schema.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "grammar/empty_schemas.h"
#include "grammar/schema_parts.h"
#include "grammar/schema_words.h"
#include "grammar/typed_schema.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr std::array<std::string_view, 6> kEveryType = {"null", "boolean", "number", "string", "array", "object"};
constexpr size_t kMostAlternatives = 256;
constexpr size_t kMostExclusive = 16;  // alternatives of a oneOf that are told apart by what the others are not

class PlainSchema {
 public:
  explicit PlainSchema(const Schema& asked) : asked_(asked), empty_(asked) {}

  Result<json::value> run() {
    QUIRE_ASSIGN_OR_RETURN(json::value plain, of(asked_.root(), "#"));
    QUIRE_RETURN_IF_ERROR(settle(plain, "#"));
    if (plain == json::value(false)) return refuse("#", "no value satisfies all that it says");
    if (!plain.is_object()) return plain;
    json::object& root = plain.get_object();
    for (size_t i = 0; i < kept_.size(); ++i) {  // which may find more of them
      const Kept kept = kept_[i];
      QUIRE_ASSIGN_OR_RETURN(json::value one, of(*kept.target, kept.where));
      QUIRE_RETURN_IF_ERROR(settle(one, kept.where));
      json::value& definitions = root[kept.list];
      if (!definitions.is_object()) definitions.emplace_object();
      definitions.get_object()[kept.name] = std::move(one);
    }
    return plain;
  }

 private:
  static constexpr int kMostDepth = 64;
  static constexpr int64_t kStepsPerNode = 20;

  // A place that is referred to, and which definition it is.
  struct Kept {
    const json::value* target;
    std::string_view list;
    std::string name;
    std::string where;
  };

  static Status refuse(std::string_view where, std::string_view why) {
    return invalid_argument("in the schema at {}: {}", where, why);
  }

  Status spend(const json::value& a, const std::string& where) {
    spent_ += nodes(a);
    if (spent_ <= kStepsPerNode * asked_.limits().max_schema_nodes) return {};
    return refuse(where, "the combinations of its parts are too many");
  }

  // ------------------------------------------------------------------------------------------------------------
  // one schema

  Result<json::value> of(const json::value& schema, const std::string& where) {
    const auto* object = schema.if_object();
    if (object == nullptr) return schema;
    if (depth_ >= kMostDepth) {
      return refuse(where, "schemas that combine each other without end, or more than 64 deep");
    }
    ++depth_;
    std::set<std::string> beside = std::exchange(negated_names_, {});  // which it does not see
    auto out = combined(*object, where);
    negated_names_.merge(beside);
    --depth_;
    return out;
  }

  static bool combines(const json::object& object) {
    for (const std::string_view name : {"$ref", "allOf", "anyOf", "oneOf", "not", "if"}) {
      if (object.contains(name)) return true;
    }
    return false;
  }

  Result<json::value> combined(const json::object& object, const std::string& where) {
    QUIRE_ASSIGN_OR_RETURN(json::value out, own(object, where));
    if (const json::value* ref = object.if_contains("$ref")) {
      QUIRE_ASSIGN_OR_RETURN(out, merge(out, json::object{{"$ref", *ref}}, where));
    }
    if (const json::value* list = object.if_contains("allOf")) {
      for (size_t i = 0; i < list->get_array().size(); ++i) {
        const std::string place = fmt::format("{}/allOf/{}", where, i);
        QUIRE_ASSIGN_OR_RETURN(const json::value one, of(list->get_array()[i], place));
        QUIRE_ASSIGN_OR_RETURN(out, merge(out, one, place));
      }
    }
    if (const json::value* condition = object.if_contains("if")) {
      QUIRE_ASSIGN_OR_RETURN(const json::value ways, conditional(object, *condition, where));
      QUIRE_ASSIGN_OR_RETURN(out, merge(out, ways, where + "/if"));
    }
    if (const json::value* never = object.if_contains("not")) {
      QUIRE_ASSIGN_OR_RETURN(const json::value others, negated(*never, where + "/not"));
      QUIRE_ASSIGN_OR_RETURN(out, merge(out, others, where + "/not"));
    }
    if (const json::value* list = object.if_contains("anyOf")) {
      json::array ways;
      for (size_t i = 0; i < list->get_array().size(); ++i) {
        QUIRE_ASSIGN_OR_RETURN(json::value one, of(list->get_array()[i], fmt::format("{}/anyOf/{}", where, i)));
        if (!empty_.is_empty(one)) ways.push_back(std::move(one));
      }
      QUIRE_ASSIGN_OR_RETURN(out, merge(out, any_of(std::move(ways)), where + "/anyOf"));
    }
    if (const json::value* list = object.if_contains("oneOf")) {
      QUIRE_ASSIGN_OR_RETURN(const json::value ways, one_of(list->get_array(), where + "/oneOf"));
      QUIRE_ASSIGN_OR_RETURN(out, merge(out, ways, where + "/oneOf"));
    }
    if (combines(object)) {
      QUIRE_RETURN_IF_ERROR(close(object, "unevaluatedProperties", "additionalProperties", out, where));
      QUIRE_RETURN_IF_ERROR(close(object, "unevaluatedItems", "items", out, where));
    }
    return out;
  }

  // Its keywords without those that combine, the schemas in them plain. True: there are none that say anything.
  Result<json::value> own(const json::object& object, const std::string& where) {
    json::object out;
    bool says = false;
    const bool combining = combines(object);
    std::optional<json::array> listed;
    for (const auto& member : object) {
      const std::string_view name = member.key();
      const bool is_apart = name == "$ref" || name == "allOf" || name == "anyOf" || name == "oneOf" || name == "not" ||
                            name == "if" || name == "then" || name == "else" || name == "$defs" ||
                            name == "definitions" || (combining && name.starts_with("unevaluated"));
      if (is_apart) continue;
      if (name == "const" || name == "enum") {
        json::array values = name == "const" ? json::array{member.value()} : member.value().get_array();
        listed = listed ? in_both(*listed, values) : std::move(values);
        continue;
      }
      says = says || !is_annotation(name);
      // Parts of its own are all that it sees, so that what they do not evaluate is additional, whatever joins it.
      const std::string_view as = name == "unevaluatedProperties" ? "additionalProperties"
                                  : name == "unevaluatedItems"    ? "items"
                                                                  : name;
      if (as != name && object.contains(as)) continue;
      const std::set<std::string> negated_here = negated_names_;  // not those within it
      QUIRE_ASSIGN_OR_RETURN(out[as], keyword(as, member.value(), fmt::format("{}/{}", where, name)));
      negated_names_ = negated_here;
    }
    if (!listed) return says ? json::value(std::move(out)) : json::value(true);
    json::value values = values_of(std::move(*listed));
    return says ? merge(values, out, where) : Result<json::value>(std::move(values));
  }

  Result<json::value> keyword(std::string_view name, const json::value& value, const std::string& where) {
    if (name == "properties" || name == "patternProperties") {
      json::object out;
      for (const auto& member : value.get_object()) {
        const std::string_view key = member.key();
        QUIRE_ASSIGN_OR_RETURN(out[key], of(member.value(), fmt::format("{}/{}", where, key)));
      }
      return json::value(std::move(out));
    }
    if (name == "prefixItems") {
      json::array out;
      for (const json::value& item : value.get_array()) {
        QUIRE_ASSIGN_OR_RETURN(json::value one, of(item, fmt::format("{}/{}", where, out.size())));
        out.push_back(std::move(one));
      }
      return json::value(std::move(out));
    }
    if (name == "items" || name == "additionalProperties" || name == "propertyNames" ||
        name.starts_with("unevaluated")) {
      return of(value, where);
    }
    return value;
  }

  Result<json::value> conditional(const json::object& object, const json::value& condition, const std::string& where) {
    const json::value* then = object.if_contains("then");
    const json::value* otherwise = object.if_contains("else");
    if (then == nullptr && otherwise == nullptr) return json::value(true);
    QUIRE_ASSIGN_OR_RETURN(json::value yes, of(condition, where + "/if"));
    if (then != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(const json::value more, of(*then, where + "/then"));
      QUIRE_ASSIGN_OR_RETURN(yes, merge(yes, more, where + "/then"));
    }
    QUIRE_ASSIGN_OR_RETURN(json::value no, negated(condition, where + "/if"));
    if (otherwise != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(const json::value more, of(*otherwise, where + "/else"));
      QUIRE_ASSIGN_OR_RETURN(no, merge(no, more, where + "/else"));
    }
    json::array ways;
    ways.push_back(std::move(yes));
    ways.push_back(std::move(no));
    return any_of(std::move(ways));
  }

  // Where it does not show that the alternatives exclude each other, each without the others, if that can be said.
  Result<json::value> one_of(const json::array& list, const std::string& where) {
    json::array ways;
    std::vector<size_t> places;  // in the list
    for (size_t i = 0; i < list.size(); ++i) {
      QUIRE_ASSIGN_OR_RETURN(json::value one, of(list[i], fmt::format("{}/{}", where, i)));
      if (empty_.is_empty(one)) continue;
      ways.push_back(std::move(one));
      places.push_back(i);
    }
    if (ways.empty()) return json::value(false);
    if (ways.size() == 1) return ways.front();
    json::value as_it_is = json::object{{"oneOf", ways}};
    if (exclude_each_other(ways) || ways.size() > kMostExclusive) return as_it_is;
    json::array apart;
    for (size_t i = 0; i < ways.size(); ++i) {
      json::value alone = ways[i];
      for (const size_t k : places) {
        if (k == places[i]) continue;
        const std::string place = fmt::format("{}/{}", where, k);
        auto not_it = negated(list[k], place);
        if (!not_it.ok()) return as_it_is;
        QUIRE_ASSIGN_OR_RETURN(alone, merge(alone, *not_it, place));
      }
      apart.push_back(std::move(alone));
    }
    return any_of(std::move(apart));
  }

  bool exclude_each_other(const json::array& ways) const {
    for (size_t i = 0; i < ways.size(); ++i) {
      for (size_t k = i + 1; k < ways.size(); ++k) {
        if (!asked_.disjoint(ways[i], ways[k])) return false;
      }
    }
    return true;
  }

  // What a negation says of a property does not evaluate it; once merged, it looks as if it did.
  Status evaluates_negated(const json::object& object, const std::string& where) const {
    for (const std::string& name : negated_names_) {
      if (always_evaluates(asked_, object, name, kMostDepth)) continue;
      return refuse(where,
                    fmt::format("\"not\", \"if\" or \"oneOf\" beside it asks about the property \"{}\", which is "
                                "declared nowhere else: declare it in \"properties\" beside it",
                                name.substr(0, 60)));
    }
    return {};
  }

  // What the parts put together leave unevaluated is additional once they are one.
  Status close(const json::object& object, std::string_view name, std::string_view as, json::value& out,
               const std::string& where) {
    const json::value* rest = object.if_contains(name);
    if (rest == nullptr || *rest == json::value(true)) return {};
    const std::string place = fmt::format("{}/{}", where, name);
    if (as == "additionalProperties") QUIRE_RETURN_IF_ERROR(evaluates_negated(object, place));
    QUIRE_ASSIGN_OR_RETURN(const json::value plain, of(*rest, place));
    return close_with(plain, as, out, place);
  }

  Status close_with(const json::value& rest, std::string_view as, json::value& out, const std::string& where) {
    if (out == json::value(false)) return {};
    if (out == json::value(true)) out.emplace_object();
    json::object& object = out.get_object();
    if (object.contains("$ref")) {
      QUIRE_ASSIGN_OR_RETURN(out, target(object, where));
      return close_with(rest, as, out, where);
    }
    if (in_negation_ > 0) return refuse(where, "it cannot be negated");
    if (json::value* ways = choice(object)) {
      // Closed, an alternative that others overlap might seem to be none, and they to be alone.
      if (object.contains("oneOf") && !exclude_each_other(ways->get_array())) {
        return refuse(where, "it stands beside a oneOf of which a value might satisfy two");
      }
      for (json::value& way : ways->get_array()) QUIRE_RETURN_IF_ERROR(close_with(rest, as, way, where));
      return {};
    }
    if (object.contains("enum")) return refuse(where, "it stands beside listed values");
    if (!object.contains(as)) object[as] = rest;
    return {};
  }

  // ------------------------------------------------------------------------------------------------------------
  // conjunctions

  Result<json::value> target(const json::object& ref, const std::string& where) { return of(asked_.place(ref), where); }

  Result<json::value> merge(const json::value& a, const json::value& b, const std::string& where) {
    if (a == json::value(true) || a == b) return b;
    if (b == json::value(true)) return a;
    if (a.is_bool() || b.is_bool()) return json::value(false);
    QUIRE_RETURN_IF_ERROR(spend(a, where));
    QUIRE_RETURN_IF_ERROR(spend(b, where));
    if (depth_ >= kMostDepth) return refuse(where, "schemas that combine each other without end, or more than 64 deep");
    ++depth_;
    auto out = merged(a.get_object(), b.get_object(), where);
    --depth_;
    return out;
  }

  Result<json::value> merged(const json::object& a, const json::object& b, const std::string& where) {
    for (const json::object* one : {&a, &b}) {
      if (one->contains("$ref")) {
        QUIRE_ASSIGN_OR_RETURN(const json::value meant, target(*one, where));
        return one == &a ? merge(meant, b, where) : merge(a, meant, where);
      }
    }
    for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      for (const std::string_view name : {"anyOf", "oneOf"}) {
        if (one->contains(name)) return distribute(name, one->at(name).get_array(), *other, one == &a, where);
      }
    }
    if (const json::array* values = excluded(b)) return without(a, *values, where);
    if (const json::array* values = excluded(a)) return without(b, *values, where);
    if (a.contains("enum")) return filtered(a.at("enum").get_array(), b);
    if (b.contains("enum")) return filtered(b.at("enum").get_array(), a);
    return both(a, b, where);
  }

  Result<json::value> distribute(std::string_view name, const json::array& ways, const json::value& other,
                                 bool ways_first, const std::string& where) {
    json::array out;
    for (const json::value& way : ways) {
      QUIRE_ASSIGN_OR_RETURN(json::value one, ways_first ? merge(way, other, where) : merge(other, way, where));
      if (one == json::value(false)) continue;
      out.push_back(std::move(one));
    }
    if (out.size() > kMostAlternatives) return refuse(where, "combined they have more than 256 alternatives");
    if (name == "anyOf" || out.size() < 2) return any_of(std::move(out));
    return json::value(json::object{{name, std::move(out)}});
  }

  json::value filtered(const json::array& values, const json::value& other) const {
    json::array out;
    for (const json::value& value : values) {
      if (asked_.satisfies(other, value)) out.push_back(value);
    }
    return values_of(std::move(out));
  }

  // Both are of types with their keywords.
  Result<json::value> both(const json::object& a, const json::object& b, const std::string& where) {
    json::object out = a;
    for (const auto& member : b) {
      const std::string_view name = member.key();
      if (json::value* mine = out.if_contains(name)) {
        if (is_annotation(name) || *mine == member.value()) continue;
        QUIRE_RETURN_IF_ERROR(narrow(name, *mine, member.value(), where));
      } else {
        out[name] = member.value();
      }
    }
    if (a.contains("type") && b.contains("type")) {
      json::array types = shared_types(a, b);
      if (types.empty()) return json::value(false);
      out["type"] = types.size() == 1 ? types.front() : json::value(std::move(types));
    }
    if (may_be(out, "object")) QUIRE_RETURN_IF_ERROR(join_members(a, b, out, where));
    if (may_be(out, "array")) QUIRE_RETURN_IF_ERROR(join_items(a, b, out, where));
    return without_empty(std::move(out));
  }

  static bool may_be(const json::object& schema, std::string_view type) {
    const auto types = named_types(schema);
    return types.empty() || std::ranges::find(types, type) != types.end();
  }

  Status join_members(const json::object& a, const json::object& b, json::object& out, const std::string& where) {
    for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
      if (!one->contains("patternProperties")) continue;
      for (const std::string_view name : {"properties", "patternProperties", "additionalProperties"}) {
        if (!other->contains(name) || (one->contains(name) && one->at(name) == other->at(name))) continue;
        return refuse(where, fmt::format("\"patternProperties\" and \"{}\" cannot be put together", name));
      }
    }
    const json::object& mine = map_at(a, "properties");
    const json::object& others = map_at(b, "properties");
    const json::value my_rest = schema_at(a, "additionalProperties");
    const json::value other_rest = schema_at(b, "additionalProperties");
    json::object properties;
    const auto join = [&](std::string_view key, const json::value& x, const json::value& y) -> Status {
      QUIRE_ASSIGN_OR_RETURN(properties[key], merge(x, y, fmt::format("{}/properties/{}", where, key)));
      return {};
    };
    for (const auto& member : mine) {
      const json::value* beside = others.if_contains(member.key());
      QUIRE_RETURN_IF_ERROR(join(member.key(), member.value(), beside == nullptr ? other_rest : *beside));
    }
    for (const auto& member : others) {
      if (!mine.contains(member.key())) QUIRE_RETURN_IF_ERROR(join(member.key(), my_rest, member.value()));
    }
    if (a.contains("properties") || b.contains("properties")) out["properties"] = std::move(properties);
    if (a.contains("additionalProperties") || b.contains("additionalProperties")) {
      QUIRE_ASSIGN_OR_RETURN(out["additionalProperties"], merge(my_rest, other_rest, where + "/additionalProperties"));
    }
    json::array required;
    for (const json::object* side : {&a, &b}) {
      const json::value* names = side->if_contains("required");
      if (names == nullptr) continue;
      for (const json::value& name : names->get_array()) {
        if (std::ranges::find(required, name) == required.end()) required.push_back(name);
      }
    }
    if (!required.empty()) out["required"] = std::move(required);
    return {};
  }

  Status join_items(const json::object& a, const json::object& b, json::object& out, const std::string& where) {
    static const json::array kNone;
    const auto prefix_of = [](const json::object& schema) -> const json::array& {
      const json::value* found = schema.if_contains("prefixItems");
      return found == nullptr ? kNone : found->get_array();
    };
    const json::array& mine = prefix_of(a);
    const json::array& others = prefix_of(b);
    const json::value my_rest = schema_at(a, "items");
    const json::value other_rest = schema_at(b, "items");
    json::array prefix;
    for (size_t i = 0; i < std::max(mine.size(), others.size()); ++i) {
      QUIRE_ASSIGN_OR_RETURN(json::value item,
                             merge(i < mine.size() ? mine[i] : my_rest, i < others.size() ? others[i] : other_rest,
                                   fmt::format("{}/prefixItems/{}", where, i)));
      if (item == json::value(false)) {
        const json::value* most = out.if_contains("maxItems");
        const auto here = static_cast<int64_t>(i);
        out["maxItems"] = most == nullptr ? here : std::min(most->to_number<int64_t>(), here);
        break;
      }
      prefix.push_back(std::move(item));
    }
    out.erase("prefixItems");
    if (!prefix.empty()) out["prefixItems"] = std::move(prefix);
    if (a.contains("items") || b.contains("items")) {
      QUIRE_ASSIGN_OR_RETURN(out["items"], merge(my_rest, other_rest, where + "/items"));
    }
    return {};
  }

  // ------------------------------------------------------------------------------------------------------------
  // negations

  // Exact, but for numbers that are no integers. A negation within a negation must be exact, for what one leaves out
  // the other would let in.
  Result<json::value> negated(const json::value& schema, const std::string& where) {
    const bool nested = in_negation_ > 0;
    ++in_negation_;
    auto plain = of(schema, where);
    auto out = plain.ok() ? opposite(*plain, nested, where) : std::move(plain);
    --in_negation_;
    return out;
  }

  Result<json::value> opposite(const json::value& schema, bool exactly, const std::string& where) {
    if (schema.is_bool()) return json::value(!schema.get_bool());
    const json::object& object = schema.get_object();
    if (object.contains("$ref")) {
      if (depth_ >= kMostDepth) return refuse(where, "a negation of a schema that refers to itself");
      ++depth_;
      auto meant = target(object, where);
      auto out = meant.ok() ? opposite(*meant, exactly, where) : std::move(meant);
      --depth_;
      return out;
    }
    if (const json::value* values = object.if_contains("enum")) {
      return excluding(values->get_array());
    }
    if (const json::array* values = excluded(object)) return values_of(*values);
    for (const std::string_view name : {"anyOf", "oneOf"}) {
      if (!object.contains(name)) continue;
      const json::array& ways = object.at(name).get_array();
      if (name == "oneOf" && !exclude_each_other(ways)) {
        return refuse(where, "\"oneOf\" cannot be negated unless its alternatives exclude each other");
      }
      json::value out = true;
      for (const json::value& way : ways) {
        QUIRE_ASSIGN_OR_RETURN(const json::value not_it, opposite(way, exactly, where));
        QUIRE_ASSIGN_OR_RETURN(out, merge(out, not_it, where));
      }
      return out;
    }
    json::array ways;
    for (const auto& member : object) {
      if (is_annotation(member.key())) continue;
      QUIRE_RETURN_IF_ERROR(break_keyword(object, member.key(), member.value(), exactly, where, ways));
    }
    return any_of(std::move(ways));
  }

  // Adds the ways to break one keyword.
  Status break_keyword(const json::object& object, std::string_view name, const json::value& value, bool exactly,
                       const std::string& where, json::array& ways) {
    if (name == "type") return other_types(object, exactly, where, ways);
    if (name == "required") {
      for (const json::value& one : value.get_array()) {
        ways.push_back(json::object{{"type", "object"},
                                    {"properties", json::object{{std::string_view(one.get_string()), false}}}});
      }
      return {};
    }
    if (name == "properties") {
      for (const auto& member : value.get_object()) {
        const std::string_view key = member.key();
        const std::set<std::string> negated_here = negated_names_;  // not those within it
        QUIRE_ASSIGN_OR_RETURN(json::value other,
                               opposite(member.value(), exactly, fmt::format("{}/properties/{}", where, key)));
        negated_names_ = negated_here;
        if (other == json::value(false)) continue;
        negated_names_.emplace(key);
        ways.push_back(json::object{
            {"type", "object"}, {"properties", json::object{{key, std::move(other)}}}, {"required", json::array{key}}});
      }
      return {};
    }
    if (name == "additionalProperties" && value == json::value(true)) return {};
    struct Bound {
      std::string_view name, type, opposite;
      int64_t step;
    };
    constexpr std::array<Bound, 10> kBounds = {{{"minimum", "number", "exclusiveMaximum", 0},
                                                {"maximum", "number", "exclusiveMinimum", 0},
                                                {"exclusiveMinimum", "number", "maximum", 0},
                                                {"exclusiveMaximum", "number", "minimum", 0},
                                                {"minLength", "string", "maxLength", -1},
                                                {"maxLength", "string", "minLength", 1},
                                                {"minItems", "array", "maxItems", -1},
                                                {"maxItems", "array", "minItems", 1},
                                                {"minProperties", "object", "maxProperties", -1},
                                                {"maxProperties", "object", "minProperties", 1}}};
    const auto* bound = std::ranges::find(kBounds, name, &Bound::name);
    if (bound == kBounds.end()) {
      return refuse(where, fmt::format("\"{}\" cannot be negated, as not, if or oneOf would have to", name));
    }
    if (bound->step == 0) {
      ways.push_back(json::object{{"type", bound->type}, {bound->opposite, value}});
      return {};
    }
    const int64_t count = value.to_number<int64_t>() + bound->step;
    if (count >= 0) ways.push_back(json::object{{"type", bound->type}, {bound->opposite, count}});
    return {};
  }

  static Status other_types(const json::object& object, bool exactly, const std::string& where, json::array& ways) {
    const auto types = named_types(object);
    const auto has = [&](std::string_view type) { return std::ranges::find(types, type) != types.end(); };
    if (exactly && has("integer") && !has("number")) {
      return refuse(where, "the type integer cannot be negated within a negation");
    }
    json::array others;
    for (const std::string_view type : kEveryType) {
      if (!has(type) && !(type == "number" && has("integer"))) others.emplace_back(type);
    }
    if (!others.empty()) ways.push_back(json::object{{"type", std::move(others)}});
    return {};
  }

  // ------------------------------------------------------------------------------------------------------------
  // values that are not to be

  Result<json::value> without(const json::object& schema, const json::array& values, const std::string& where) {
    if (const json::array* others = excluded(schema)) {
      json::array all = *others;
      for (const json::value& value : values) all.push_back(value);
      return excluding(std::move(all));
    }
    json::array found;  // those that it has
    for (const json::value& value : values) {
      if (asked_.satisfies(schema, value)) found.push_back(value);
    }
    if (found.empty()) return json::value(schema);
    if (const json::value* listed = schema.if_contains("enum")) {
      json::array left;
      for (const json::value& value : listed->get_array()) {
        const auto same = [&](const json::value& other) { return same_json(value, other); };
        if (std::ranges::none_of(found, same)) left.push_back(value);
      }
      return values_of(std::move(left));
    }
    return each_type_without(schema, found, where);
  }

  Result<json::value> each_type_without(const json::object& schema, const json::array& values,
                                        const std::string& where) {
    std::vector<std::string_view> types = named_types(schema);
    if (types.empty()) types.assign(kEveryType.begin(), kEveryType.end());
    json::array whole;  // types that none of the values is of
    json::array ways;
    for (const std::string_view type : types) {
      json::array here;
      for (const json::value& value : values) {
        if (value_has_type(value, type)) here.push_back(value);
      }
      if (here.empty()) {
        whole.emplace_back(type);
      } else if (type == "boolean") {
        for (const bool value : {true, false}) {
          if (std::ranges::find(here, json::value(value)) == here.end()) ways.push_back(values_of({value}));
        }
      } else if (type == "integer" || type == "number") {
        numbers_without(schema, type, here, ways);
      } else if (type == "string") {
        QUIRE_ASSIGN_OR_RETURN(json::value strings, strings_without(schema, here, where));
        ways.push_back(std::move(strings));
      } else if (type != "null") {
        return refuse(where, fmt::format("\"not\" of a whole {} cannot be heeded", type));
      }
    }
    if (!whole.empty()) {
      json::object rest = schema;
      rest["type"] = whole.size() == 1 ? whole.front() : json::value(std::move(whole));
      ways.push_back(std::move(rest));
    }
    return any_of(std::move(ways));
  }

  // ------------------------------------------------------------------------------------------------------------
  // at the end

  // Excluded values that met no schema are said of all types; references are to places that are still there.
  Status settle(json::value& schema, const std::string& where) {
    if (!schema.is_object()) return {};
    if (const json::array* values = excluded(schema.get_object())) {
      QUIRE_ASSIGN_OR_RETURN(schema, each_type_without({}, json::array(*values), where));
      return settle(schema, where);
    }
    json::object& object = schema.get_object();
    if (json::value* ref = object.if_contains("$ref")) {
      *ref = kept(object);
      return {};
    }
    for (auto& member : object) {
      const std::string_view name = member.key();
      const std::string place = fmt::format("{}/{}", where, name);
      if (name == "properties" || name == "patternProperties") {
        for (auto& one : member.value().get_object()) {
          QUIRE_RETURN_IF_ERROR(settle(one.value(), fmt::format("{}/{}", place, std::string_view(one.key()))));
        }
      } else if (name == "prefixItems" || name == "anyOf" || name == "oneOf") {
        for (json::value& one : member.value().get_array()) QUIRE_RETURN_IF_ERROR(settle(one, place));
      } else if (name == "items" || name == "additionalProperties" || name == "propertyNames" ||
                 name.starts_with("unevaluated")) {
        QUIRE_RETURN_IF_ERROR(settle(member.value(), place));
      }
    }
    return {};
  }

  // Of the root and its definitions the places stay, as far as they are still referred to; others become definitions.
  json::value kept(const json::object& ref) {
    const json::value& uri = ref.at("$ref");
    const std::string_view text = uri.get_string();
    if (text == "#") return uri;
    std::string_view list = "$defs";
    std::string name = fmt::format("place {}", kept_.size());  // which no schema is likely to have
    for (const std::string_view own : {"$defs", "definitions"}) {
      const std::string prefix = fmt::format("#/{}/", own);
      if (!text.starts_with(prefix) || text.find_first_of("/~", prefix.size()) != std::string_view::npos) continue;
      list = own;
      name = text.substr(prefix.size());
    }
    const json::value* target = &asked_.place(ref);
    auto found = std::ranges::find(kept_, target, &Kept::target);
    if (found == kept_.end()) {
      kept_.push_back({target, list, std::move(name), std::string(text)});
      found = std::prev(kept_.end());
    }
    return json::value(fmt::format("#/{}/{}", found->list, found->name));
  }

  const Schema& asked_;
  EmptySchemas empty_;
  std::vector<Kept> kept_;
  std::set<std::string> negated_names_;  // of properties, by negations on the level that is being made
  int depth_ = 0;
  int in_negation_ = 0;
  int64_t spent_ = 0;
};

}  // namespace

Result<json::value> plain_schema(const Schema& asked) {
  return PlainSchema(asked).run();
}

}  // namespace quire::grammar
