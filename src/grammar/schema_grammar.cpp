// A JSON schema as EBNF, one rule a schema object. Nothing is left to how the grammar's library reads schemas: what it
// gets are characters, sequences, alternatives and counts.
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "grammar/empty_schemas.h"
#include "grammar/formats.h"
#include "grammar/number_ebnf.h"
#include "grammar/schema.h"
#include "grammar/schema_parts.h"
#include "text/utf8.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr size_t kMostPropertyStates = 20000;

// Between the tokens of JSON, and free JSON.
constexpr const char* kWhiteRules = R"(w ::= [ \n\r\t]{0,32}
comma ::= "," w
colon ::= w ":" w
)";
constexpr const char* kTightRules = R"(w ::= ""
comma ::= ", "
colon ::= ": "
)";
constexpr const char* kFreeRules = R"(any ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" w ("" | pair (comma pair)*) "}"
pair ::= string colon any w
array ::= "[" w ("" | element (comma element)*) "]"
element ::= any w
string ::= "\"" rest
rest ::= "\"" | [ !#-\[\]-\ud7ff\ue000-\U0010ffff] rest | "\\" (["\\/bfnrt] rest | "u" half)
half ::= [0-9A-CE-Fa-ce-f] [0-9A-Fa-f]{3} rest | [Dd] [0-7] [0-9A-Fa-f]{2} rest | [Dd] [89ABab] [0-9A-Fa-f]{2} "\\u" [Dd] [C-Fc-f] [0-9A-Fa-f]{2} rest
)";

const CodePoints& every_character() {
  static const CodePoints all{{0, 0x10FFFF}};
  return all;
}

std::string ending(const std::string& where) {
  return where.size() <= 200 ? where : "..." + where.substr(where.size() - 200);
}

int64_t count_or(const json::object& object, std::string_view name, int64_t otherwise) {
  const json::value* value = object.if_contains(name);
  return value == nullptr ? otherwise : value->to_number<int64_t>();
}

class SchemaGrammar {
 public:
  SchemaGrammar(const Schema& schema, bool any_whitespace)
      : schema_(schema), any_whitespace_(any_whitespace), empty_(schema) {}

  Result<std::string> run() {
    std::string free_numbers;
    QUIRE_ASSIGN_OR_RETURN(const std::string number, number_ebnf({}, false, std::nullopt, "", free_numbers));
    out_ = "root ::= " + rule(schema_.root(), "#") + '\n';
    out_ += any_whitespace_ ? kWhiteRules : kTightRules;
    out_ += kFreeRules;
    out_ += "number ::= " + number + '\n';
    while (!waiting_.empty()) {
      const Waiting next = waiting_.front();
      waiting_.pop_front();
      auto body = expression(*next.schema, next.name, next.where);
      if (!body.ok()) return Status(body.status().code(), body.status().message());
      out_ += next.name + " ::= " + *body + '\n';
      if (out_.size() > kMostBytes) {
        return invalid_argument("the schema becomes a grammar of more than {} MiB", kMostBytes >> 20);
      }
    }
    QUIRE_RETURN_IF_ERROR(fault_);
    QUIRE_RETURN_IF_ERROR(ends());
    return std::move(out_);
  }

 private:
  static constexpr size_t kMostBytes = 16 << 20;

  struct Waiting {
    const json::value* schema;
    std::string name;
    std::string where;
  };

  static Status refuse(const std::string& where, std::string_view why) {
    return invalid_argument("in the schema at {}: {}", ending(where), why);
  }

  // The name of a schema's rule, which is written later.
  std::string rule(const json::value& schema, const std::string& where) {
    const json::value& target = schema_.resolved(schema);
    if (target.is_bool()) {
      if (!target.get_bool() && fault_.ok()) fault_ = refuse(where, "nothing satisfies it");
      return "any";
    }
    const auto [place, is_new] = names_.try_emplace(&target, fmt::format("s{}", names_.size()));
    if (is_new) {
      reached_.push_back(&target);
      waiting_.push_back({&target, place->second, where});
    }
    return place->second;
  }

  Result<std::string> expression(const json::value& schema, const std::string& name, const std::string& where) {
    const json::object& object = schema.get_object();
    if (const json::value* value = object.if_contains("const")) return ebnf_of(json_text(*value), Spelling::kText);
    if (const json::value* list = object.if_contains("enum")) {
      std::vector<std::string> values;
      for (const json::value& value : list->get_array()) values.push_back(ebnf_of(json_text(value), Spelling::kText));
      return fmt::format("{}", fmt::join(values, " | "));
    }
    for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
      if (const json::value* list = object.if_contains(keyword)) return alternatives(keyword, *list, where);
    }
    std::vector<std::string_view> types;
    if (const json::value* type = object.if_contains("type")) {
      if (type->is_string()) types.emplace_back(type->get_string());
      if (type->is_array()) {
        for (const json::value& one : type->get_array()) types.emplace_back(one.get_string());
      }
    } else if (object.contains("properties") || object.contains("additionalProperties") ||
               object.contains("unevaluatedProperties")) {
      types = {"object"};
    } else if (object.contains("items") || object.contains("prefixItems") || object.contains("unevaluatedItems")) {
      types = {"array"};
    } else {
      return std::string("any");
    }
    // Types that nothing satisfies are left out; all of them stay where nothing does, so that one says why.
    const auto has_none = [&](std::string_view type) { return empty_.has_none(object, type); };
    if (!std::ranges::all_of(types, has_none)) std::erase_if(types, has_none);
    std::vector<std::string> ways;
    for (const std::string_view type : types) {
      QUIRE_ASSIGN_OR_RETURN(std::string way, typed(object, type, name, where));
      ways.push_back(std::move(way));
    }
    return fmt::format("{}", fmt::join(ways, " | "));
  }

  Result<std::string> alternatives(std::string_view keyword, const json::value& list, const std::string& where) {
    const json::array& all = list.get_array();
    const std::vector<size_t> places = satisfiable(all);
    for (size_t i = 0; keyword == "oneOf" && i < places.size(); ++i) {
      for (size_t k = i + 1; k < places.size(); ++k) {
        if (schema_.disjoint(all[places[i]], all[places[k]])) continue;
        return refuse(where, fmt::format("oneOf: a value might satisfy both of {} and {}. Say anyOf, or give both a "
                                         "required property with different constants",
                                         places[i], places[k]));
      }
    }
    std::vector<std::string> ways;
    for (const size_t i : places) ways.push_back(rule(all[i], fmt::format("{}/{}/{}", where, keyword, i)));
    return fmt::format("{}", fmt::join(ways, " | "));
  }

  // Places of the alternatives that something satisfies; all of them where nothing does, so that one says why.
  std::vector<size_t> satisfiable(const json::array& alternatives) {
    std::vector<size_t> places, every;
    for (size_t i = 0; i < alternatives.size(); ++i) {
      every.push_back(i);
      if (!empty_.is_empty(alternatives[i])) places.push_back(i);
    }
    return places.empty() ? every : places;
  }

  Result<std::string> typed(const json::object& object, std::string_view type, const std::string& name,
                            const std::string& where) {
    if (type == "null") return std::string("\"null\"");
    if (type == "boolean") return std::string("(\"true\" | \"false\")");
    if (type == "string") return string(object, where);
    if (type == "array") return array(object, where);
    if (type == "object") return members(object, name, where);
    return number(object, type == "integer", name, where);
  }

  Result<std::string> number(const json::object& object, bool integer, const std::string& name,
                             const std::string& where) {
    NumberBounds bounds{object.if_contains("minimum"), object.if_contains("maximum"),
                        object.if_contains("exclusiveMinimum"), object.if_contains("exclusiveMaximum")};
    std::optional<int64_t> multiple;
    if (const json::value* of = object.if_contains("multipleOf")) {
      const double value = of->to_number<double>();
      if (value < 1 || value > 1e12 || value != static_cast<double>(static_cast<int64_t>(value))) {
        return refuse(where, "multipleOf must be a whole number from 1 to 10^12");
      }
      multiple = static_cast<int64_t>(value);
      integer = true;
    }
    const json::value* format = object.if_contains("format");
    if (format != nullptr && (format->get_string() == "int32" || format->get_string() == "int64")) integer = true;
    if (format != nullptr && format->get_string() == "int32") {
      // Beside bounds of its own the format's are no narrower than ours, or the narrower is taken.
      constexpr int64_t kMost = (int64_t{1} << 31) - 1;
      if (bounds.minimum == nullptr || bounds.minimum->to_number<double>() < static_cast<double>(-kMost - 1)) {
        low_ = -kMost - 1;
        bounds.minimum = &low_;
      }
      if (bounds.maximum == nullptr || bounds.maximum->to_number<double>() > static_cast<double>(kMost)) {
        high_ = kMost;
        bounds.maximum = &high_;
      }
    }
    auto written = number_ebnf(bounds, integer, multiple, name, out_);
    if (!written.ok()) return refuse(where, written.status().message());
    return written;
  }

  Result<std::string> string(const json::object& object, const std::string& where) {
    const json::value* pattern = object.if_contains("pattern");
    const json::value* format = object.if_contains("format");
    if (pattern != nullptr || format != nullptr) {
      const std::string_view text =
          pattern != nullptr ? std::string_view(pattern->get_string()) : format_pattern(format->get_string());
      const Regex* regex = schema_.regex(text);
      if (regex == nullptr) return refuse(where, "the format is not one of strings, or the pattern was not read");
      auto within = ebnf_of_length(*regex, object, Spelling::kJson);
      if (!within.ok()) return refuse(where, within.status().message());
      return "\"\\\"\" " + *within + " \"\\\"\"";
    }
    if (const json::value* never = object.if_contains("not")) {
      std::vector<std::string> others;
      for (const json::value& one : never->get_object().at("enum").get_array()) others.emplace_back(one.get_string());
      return "\"\\\"\" " + not_one_of(others) + " \"\\\"\"";
    }
    const int64_t least = count_or(object, "minLength", 0);
    const int64_t most = count_or(object, "maxLength", -1);
    if (most >= 0 && most < least) return refuse(where, "minLength is greater than maxLength");
    return counted_string(least, most);
  }

  static std::string counted_string(int64_t least, int64_t most) {
    if (least == 0 && most < 0) return "string";
    if (most == 0) return "\"\\\"\\\"\"";
    return "\"\\\"\" " + ebnf_of(every_character(), Spelling::kJson) + count(least, most) + " \"\\\"\"";
  }

  static std::string count(int64_t least, int64_t most) {
    if (most < 0) return least == 0 ? "*" : fmt::format("{{{},}}", least);
    return fmt::format("{{{},{}}}", least, most);
  }

  // "," and an item, from `least` to `most` times (-1: any).
  static std::string repeated(const std::string& item, int64_t least, int64_t most) {
    if (most == 0) return "\"\"";
    return fmt::format("(comma {}){}", item, count(least, most));
  }

  Result<std::string> array(const json::object& object, const std::string& where) {
    const int64_t least = count_or(object, "minItems", 0);
    int64_t most = count_or(object, "maxItems", -1);
    static const json::array kNone;
    const json::value* prefix_list = object.if_contains("prefixItems");
    const json::array& prefix = prefix_list == nullptr ? kNone : prefix_list->get_array();
    const json::value* items = object.if_contains("items");
    if (items == nullptr) items = object.if_contains("unevaluatedItems");
    const auto num_prefix = static_cast<int64_t>(prefix.size());
    // Where it is not said whether others may follow, only as minItems asks for more.
    const bool needs_items = least > num_prefix;  // if nothing satisfies them, they say why
    const bool is_never = items != nullptr && (needs_items ? *items == json::value(false) : empty_.is_empty(*items));
    const bool closed = items == nullptr ? num_prefix > 0 && !needs_items : is_never;
    const auto end_at = [&most](int64_t place) { most = most < 0 ? place : std::min(most, place); };
    if (closed) end_at(num_prefix);
    for (int64_t i = least; i < num_prefix; ++i) {
      if (empty_.is_empty(prefix[static_cast<size_t>(i)])) end_at(i);
    }
    if (most >= 0 && most < least) return refuse(where, fmt::format("no array has {} items or more there", least));
    const std::string item = items == nullptr || items->is_bool() || closed ? "any" : rule(*items, where + "/items");
    const std::string element = item + " w";
    if (prefix.empty()) {
      if (most == 0) return std::string("\"[\" w \"]\"");
      const std::string some =
          element + ' ' + repeated(element, std::max<int64_t>(least - 1, 0), most < 0 ? -1 : most - 1);
      return least > 0 ? fmt::format("\"[\" w {} \"]\"", some) : fmt::format("\"[\" w (\"\" | {}) \"]\"", some);
    }
    // From the last place back: what may follow once so many items are there.
    std::string rest = "\"\"";
    if (!closed && (most < 0 || most > num_prefix)) {
      rest = repeated(element, std::max<int64_t>(least - num_prefix, 0), most < 0 ? -1 : most - num_prefix);
    }
    const int64_t last = most < 0 ? num_prefix : std::min(most, num_prefix);
    for (int64_t i = last - 1; i >= 0; --i) {
      const std::string next = rule(prefix[static_cast<size_t>(i)], fmt::format("{}/prefixItems/{}", where, i));
      const std::string with = fmt::format("{}{} w {}", i > 0 ? "comma " : "", next, rest);
      const std::string here = fmt::format("t{}", num_extra_++);
      out_ += here + " ::= " + (least > i ? with : "\"\" | " + with) + '\n';
      rest = here;
    }
    return fmt::format("\"[\" w {} \"]\"", rest);
  }

  // ---------------------------------------------------------------------------------------------------------
  // objects

  struct Member {
    std::string pair;  // name, colon, value and white space
    bool required;
  };

  // What an object may have: declared members in their order, then others.
  struct Members {
    std::vector<Member> declared;
    std::string other;  // a pair; empty: no others
    int64_t least = 0;
    int64_t most = -1;
  };

  std::string pair(const std::string& key, const std::string& value) const {
    return fmt::format("{} colon {} w", key, value);
  }

  Result<std::string> members(const json::object& object, const std::string& name, const std::string& where) {
    static const json::object kNone;
    const json::value* declared = object.if_contains("properties");
    const json::object& properties = declared == nullptr ? kNone : declared->get_object();
    const json::value* rest = object.if_contains("additionalProperties");
    if (rest == nullptr) rest = object.if_contains("unevaluatedProperties");
    const json::value* patterns = object.if_contains("patternProperties");
    const json::value* names = object.if_contains("propertyNames");
    if (names != nullptr && names->is_bool()) names = nullptr;
    std::set<std::string, std::less<>> required;
    if (const json::value* list = object.if_contains("required")) {
      for (const json::value& one : list->get_array()) required.emplace(one.get_string());
    }
    const bool closed = rest != nullptr && empty_.is_empty(*rest);

    Members all;
    all.least = count_or(object, "minProperties", 0);
    all.most = count_or(object, "maxProperties", -1);
    std::vector<std::string> taken;
    const auto declare = [&](std::string_view key, const std::string& value, bool is_required) -> Status {
      if (names != nullptr && !schema_check(*names, key)) {
        if (!is_required) return {};  // it never may be there
        return refuse(where, fmt::format("the required property \"{}\" breaks propertyNames", key.substr(0, 60)));
      }
      all.declared.push_back(
          {pair(ebnf_of(json::serialize(json::value(json::string(key))), Spelling::kText), value), is_required});
      return {};
    };
    for (const auto& member : properties) {
      const std::string_view key = member.key();
      taken.emplace_back(key);
      const bool is_required = required.erase(std::string(key)) > 0;
      if (member.value().is_bool() && !member.value().get_bool()) {
        if (is_required) return refuse(where, "a required property that nothing satisfies");
        continue;
      }
      if (!is_required && empty_.is_empty(member.value())) continue;  // it never is there
      const std::string place = fmt::format("{}/properties/{}", where, key.substr(0, 60));
      QUIRE_RETURN_IF_ERROR(declare(key, rule(member.value(), place), is_required));
    }
    // Required, and declared nowhere: as the others are.
    for (const std::string& key : required) {
      if (closed || patterns != nullptr) {
        return refuse(where,
                      fmt::format("required names \"{}\", which is not declared in properties", key.substr(0, 60)));
      }
      taken.push_back(key);
      const bool is_free = rest == nullptr || rest->is_bool();
      QUIRE_RETURN_IF_ERROR(declare(key, is_free ? "any" : rule(*rest, where + "/additionalProperties"), true));
    }
    if (patterns != nullptr && !patterns->get_object().empty()) {
      const auto& entry = *patterns->get_object().begin();
      const Regex* regex = schema_.regex(entry.key());
      if (regex == nullptr) return refuse(where, "the pattern was not read");
      if (!empty_.is_empty(entry.value())) {
        all.other = pair("\"\\\"\" " + regex->ebnf(Spelling::kJson) + " \"\\\"\"",
                         rule(entry.value(), where + "/patternProperties"));
      }
    } else if (!closed && (rest != nullptr || has_room_for_others(all, object))) {
      QUIRE_ASSIGN_OR_RETURN(const std::string key, other_key(names, taken, where));
      const bool is_free = rest == nullptr || rest->is_bool();
      if (!key.empty()) all.other = pair(key, is_free ? "any" : rule(*rest, where + "/additionalProperties"));
    }
    return all_members(all, name, where);
  }

  // Of an object that does not say whether there may be others than it declares: only where nothing is declared, or too
  // little for minProperties.
  static bool has_room_for_others(const Members& all, const json::object& object) {
    if (all.least > static_cast<int64_t>(all.declared.size())) return true;
    return all.declared.empty() && !object.contains("properties");
  }

  // Does a name satisfy propertyNames?
  bool schema_check(const json::value& names, std::string_view key) const {
    return schema_.satisfies(names, json::value(json::string(key)));
  }

  // A name that is none of `taken`, as JSON. Empty: there is none.
  Result<std::string> other_key(const json::value* names, const std::vector<std::string>& taken,
                                const std::string& where) {
    if (names == nullptr) return taken.empty() ? std::string("string") : "\"\\\"\" " + not_one_of(taken) + " \"\\\"\"";
    const json::value& resolved = schema_.resolved(*names);
    const json::object& object = resolved.get_object();
    const json::value* list = object.if_contains("enum");
    if (list != nullptr || object.contains("const")) {
      std::vector<std::string> keys;
      const auto take = [&](const json::value& value) {
        if (!value.is_string()) return;  // a name is a string
        const std::string_view key = value.get_string();
        if (std::ranges::find(taken, key) == taken.end()) {
          keys.push_back(ebnf_of(json::serialize(value), Spelling::kText));
        }
      };
      if (list != nullptr) {
        for (const json::value& value : list->get_array()) take(value);
      } else {
        take(object.at("const"));
      }
      return keys.empty() ? std::string() : fmt::format("({})", fmt::join(keys, " | "));
    }
    for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
      if (object.contains(keyword))
        return refuse(where, fmt::format("propertyNames with {} is not supported", keyword));
    }
    if (const json::value* type = object.if_contains("type"); type != nullptr && *type != json::value("string")) {
      return refuse(where, "propertyNames must be of the type string");
    }
    const bool is_free = !object.contains("pattern") && !object.contains("format") && !object.contains("minLength") &&
                         !object.contains("maxLength");
    if (is_free) return other_key(nullptr, taken, where);
    if (taken.empty()) return string(object, where);
    return refuse(where,
                  "propertyNames with a pattern, format or length beside properties and further ones is not "
                  "supported: a name could be one of the declared. Set additionalProperties to false, or leave "
                  "one of them out");
  }

  // Characters of a JSON string, each spelled in one way, that are none of these names.
  std::string not_one_of(const std::vector<std::string>& names) {
    struct Letter {
      std::map<char32_t, size_t> next;
      bool is_name = false;
    };
    std::vector<Letter> trie(1);
    for (const std::string& name : names) {
      size_t at = 0;
      for (size_t i = 0; i < name.size();) {
        const text::CodePoint point = text::decode_code_point(name.data() + i);
        i += point.length;
        const auto [place, is_new] = trie[at].next.try_emplace(point.value, trie.size());
        at = place->second;
        if (is_new) trie.emplace_back();
      }
      trie[at].is_name = true;
    }
    const std::string prefix = fmt::format("k{}n", num_extra_++);
    const std::string others = ' ' + ebnf_of(every_character(), Spelling::kJson) + '*';
    for (size_t i = 0; i < trie.size(); ++i) {
      CodePoints known;
      std::vector<std::string> ways;
      if (!trie[i].is_name) ways.emplace_back("\"\"");
      for (const auto& [point, next] : trie[i].next) {
        known.add(point, point);
        ways.push_back(fmt::format("{} {}{}", ebnf_of(CodePoints{{point, point}}, Spelling::kJson), prefix, next));
      }
      ways.push_back(ebnf_of(known.complement(), Spelling::kJson) + others);
      out_ += fmt::format("{}{} ::= {}\n", prefix, i, fmt::join(ways, " | "));
    }
    return prefix + "0";
  }

  // One rule for each place among the declared and count of members so far, as far as counts matter.
  Result<std::string> all_members(const Members& all, const std::string& name, const std::string& where) {
    const size_t num = all.declared.size();
    const int64_t ceiling = all.most >= 0 ? all.most : std::max<int64_t>(all.least, 1);
    const auto capped = static_cast<size_t>(std::min<int64_t>(ceiling, static_cast<int64_t>(num) + 1));
    if ((num + 1) * (capped + 1) > kMostPropertyStates) {
      return refuse(where, "minProperties or maxProperties with so many properties is not supported");
    }
    if (all.most >= 0 && all.most < all.least) return refuse(where, "minProperties is greater than maxProperties");
    // possible[i][k]: can an object be completed from place i, with k members?
    std::vector<std::vector<bool>> possible(num + 1, std::vector<bool>(capped + 1, false));
    const auto state = [&](size_t i, size_t k) { return fmt::format("{}p{}x{}", name, i, k); };
    for (size_t i = num + 1; i-- > 0;) {
      for (size_t k = 0; k <= std::min(capped, i); ++k) {
        std::vector<std::string> ways;
        if (i == num) {
          others(all, static_cast<int64_t>(k), ways);
        } else {
          const bool full = all.most >= 0 && static_cast<int64_t>(k) >= all.most;
          const size_t more = std::min(k + 1, capped);
          if (!full && possible[i + 1][more]) {
            ways.push_back(fmt::format("{}{} {}", k > 0 ? "comma " : "", all.declared[i].pair, state(i + 1, more)));
          }
          if (!all.declared[i].required && possible[i + 1][k]) ways.push_back(state(i + 1, k));
        }
        if (ways.empty()) continue;
        possible[i][k] = true;
        out_ += fmt::format("{} ::= {}\n", state(i, k), fmt::join(ways, " | "));
      }
    }
    if (possible[0][0]) return fmt::format("\"{{\" w {} \"}}\"", state(0, 0));
    if (!all.other.empty() && all.least > 1) {
      return refuse(where, "minProperties is more than the declared properties and one: names of others could repeat");
    }
    return refuse(where, "no object satisfies required, minProperties and maxProperties");
  }

  // What may follow the declared members, k of which are there.
  static void others(const Members& all, int64_t k, std::vector<std::string>& ways) {
    const int64_t missing = std::max<int64_t>(all.least - k, 0);
    if (missing == 0) ways.emplace_back("\"\"");
    // Names may repeat, so that only one of them surely counts.
    if (all.other.empty() || missing > 1) return;
    const int64_t room = all.most < 0 ? -1 : all.most - k;
    if (room == 0) return;
    ways.push_back(fmt::format("{}{} {}", k > 0 ? "comma " : "", all.other,
                               repeated("(" + all.other + ")", 0, room < 0 ? -1 : room - 1)));
  }

  // ---------------------------------------------------------------------------------------------------------
  // schemas that no finite value satisfies

  Status ends() const {
    std::set<const json::value*> finite;
    for (bool more = true; more;) {
      more = false;
      for (auto at = reached_.rbegin(); at != reached_.rend(); ++at) {
        if (finite.contains(*at) || !is_finite((*at)->get_object(), finite)) continue;
        finite.insert(*at);
        more = true;
      }
    }
    if (schema_.root().is_bool() || finite.contains(&schema_.resolved(schema_.root()))) return {};
    return invalid_argument("the schema requires itself without end: no finite value satisfies it");
  }

  bool is_finite(const json::value& schema, const std::set<const json::value*>& finite) const {
    const json::value& target = schema_.resolved(schema);
    return target.is_bool() ? target.get_bool() : finite.contains(&target);
  }

  bool is_finite(const json::object& object, const std::set<const json::value*>& finite) const {
    const auto each = [&](const json::value& schema) { return is_finite(schema, finite); };
    for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
      if (const json::value* list = object.if_contains(keyword)) return std::ranges::any_of(list->get_array(), each);
    }
    const json::value* type = object.if_contains("type");
    if (type != nullptr && *type != json::value("object") && *type != json::value("array")) return true;
    if (const json::value* list = object.if_contains("required")) {
      const json::value* properties = object.if_contains("properties");
      const json::value* rest = object.if_contains("additionalProperties");
      for (const json::value& name : list->get_array()) {
        const json::value* one =
            properties == nullptr ? nullptr : properties->get_object().if_contains(name.get_string());
        if (one == nullptr) one = rest;
        if (one != nullptr && !each(*one)) return false;
      }
    }
    const auto least = static_cast<size_t>(count_or(object, "minItems", 0));
    const json::value* prefix = object.if_contains("prefixItems");
    const size_t num_prefix = prefix == nullptr ? 0 : prefix->get_array().size();
    for (size_t i = 0; i < std::min(least, num_prefix); ++i) {
      if (!each(prefix->get_array()[i])) return false;
    }
    const json::value* items = object.if_contains("items");
    return items == nullptr || least <= num_prefix || each(*items);
  }

  const Schema& schema_;
  const bool any_whitespace_;
  EmptySchemas empty_;
  std::string out_;
  std::unordered_map<const json::value*, std::string> names_;
  std::vector<const json::value*> reached_;
  std::deque<Waiting> waiting_;
  size_t num_extra_ = 0;
  Status fault_;     // of a rule's name
  json::value low_;  // bounds that a format brings
  json::value high_;
};

}  // namespace

Result<std::string> Schema::ebnf(bool any_whitespace) const {
  return SchemaGrammar(*this, any_whitespace).run();
}

}  // namespace quire::grammar
