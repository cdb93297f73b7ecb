#include "grammar/structural_tag.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "base/parse_json.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "text/utf8.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr std::array<std::string_view, 12> kKinds = {
    "const_string",        "any_text", "sequence", "or",     "tag",    "triggered_tags", "optional",
    "tags_with_separator", "plus",     "star",     "repeat", "grammar"};

class TagTranslation {
 public:
  TagTranslation(const TagOptions& options, const GrammarLimits& limits)
      : any_whitespace_(options.any_whitespace), limits_(limits) {}

  // A format, or a list or map of formats.
  Result<json::value> translate(const json::value& value) const {
    if (const auto* list = value.if_array()) {
      json::array out;
      for (const json::value& item : *list) {
        QUIRE_ASSIGN_OR_RETURN(json::value translated, translate(item));
        out.push_back(std::move(translated));
      }
      return json::value(std::move(out));
    }
    const auto* object = value.if_object();
    if (object == nullptr) return value;
    if (const json::value* type = object->if_contains("type"); type != nullptr && type->is_string()) {
      const std::string_view kind = type->get_string();
      if (kind == "json_schema") return schema(*object);
      if (kind == "regex") return regex(*object);
      if (kind != "structural_tag" && std::ranges::find(kKinds, kind) == kKinds.end()) {
        return invalid_argument("the structural tag's format \"{}\" is not supported", kind.substr(0, 60));
      }
    }
    json::object out;
    for (const auto& member : *object) {
      QUIRE_ASSIGN_OR_RETURN(json::value translated, translate(member.value()));
      out.emplace(member.key(), std::move(translated));
    }
    return json::value(std::move(out));
  }

 private:
  static json::value grammar(std::string ebnf) {
    return json::object{{"type", "grammar"}, {"grammar", std::move(ebnf)}};
  }

  static Status only(const json::object& object, std::initializer_list<std::string_view> known) {
    for (const auto& member : object) {
      const std::string_view name = member.key();
      if (std::ranges::find(known, name) != known.end()) continue;
      return invalid_argument("the structural tag's \"{}\" beside {} is not supported", name.substr(0, 60),
                              std::string_view(object.at("type").get_string()));
    }
    return {};
  }

  Result<json::value> schema(const json::object& object) const {
    QUIRE_RETURN_IF_ERROR(only(object, {"type", "json_schema", "style"}));
    const json::value* style = object.if_contains("style");
    if (style != nullptr && *style != json::value("json")) {
      return invalid_argument("the structural tag's style must be \"json\"; others are not supported");
    }
    const json::value* schema = object.if_contains("json_schema");
    if (schema == nullptr) return invalid_argument("the structural tag has a json_schema without its schema");
    QUIRE_ASSIGN_OR_RETURN(const auto parsed, Schema::parse(json::serialize(*schema), limits_));
    QUIRE_ASSIGN_OR_RETURN(std::string ebnf, parsed->ebnf(any_whitespace_));
    return grammar(std::move(ebnf));
  }

  Result<json::value> regex(const json::object& object) const {
    QUIRE_RETURN_IF_ERROR(only(object, {"type", "pattern"}));
    const json::value* pattern = object.if_contains("pattern");
    if (pattern == nullptr || !pattern->is_string()) {
      return invalid_argument("the structural tag has a regex without its pattern");
    }
    QUIRE_ASSIGN_OR_RETURN(const Regex parsed, Regex::parse(pattern->get_string(), limits_));
    return grammar("root ::= " + parsed.ebnf(Spelling::kText));
  }

  bool any_whitespace_;
  const GrammarLimits& limits_;
};

// What a tag says, as rules. A tag's free text ends where masks say it does; here it is any without what it excludes,
// and how many tokens it has is not counted.
class TagReader {
 public:
  Result<TagRules> run(json::value tag) {
    auto* object = tag.if_object();
    json::value* format = object == nullptr ? nullptr : object->if_contains("format");
    if (format == nullptr) return unread();
    QUIRE_ASSIGN_OR_RETURN(const int32_t root, read(*format));
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const Rules> rules, builder_.finish(root));
    for (size_t i = 0; i < grammars_.size(); ++i) *grammars_[i] = rules->loose_ebnf(i);
    return TagRules{json::serialize(tag), std::move(rules)};
  }

 private:
  using Node = Rules::Node;
  using Kind = Node::Kind;

  static Status unread() { return unimplemented("the structural tag has parts that only masks know"); }

  static bool only(const json::object& object, std::initializer_list<std::string_view> known) {
    return std::ranges::all_of(object, [&](const json::key_value_pair& member) {
      return std::ranges::find(known, std::string_view(member.key())) != known.end();
    });
  }

  int32_t sequence(std::vector<int32_t> parts) {
    return builder_.add({.kind = Kind::kSequence, .parts = std::move(parts)});
  }
  int32_t choice(std::vector<int32_t> parts) {
    return builder_.add({.kind = Kind::kChoice, .parts = std::move(parts)});
  }
  int32_t repeat(int32_t part, int64_t least, int64_t most) {
    return builder_.add({.kind = Kind::kRepeat, .least = least, .most = most, .parts = {part}});
  }

  Result<int32_t> text(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr || !value->is_string() || !text::is_valid_utf8(value->get_string())) return unread();
    return builder_.text(value->get_string());
  }

  static Result<std::vector<std::string>> texts(const json::object& object, std::string_view name) {
    std::vector<std::string> out;
    const json::value* list = object.if_contains(name);
    if (list == nullptr) return out;
    if (!list->is_array()) return unread();
    for (const json::value& one : list->get_array()) {
      if (!one.is_string() || one.get_string().empty() || !text::is_valid_utf8(one.get_string())) return unread();
      out.emplace_back(one.get_string());
    }
    return out;
  }

  Result<std::vector<int32_t>> each(json::object& object, std::string_view name) {
    std::vector<int32_t> parts;
    json::value* list = object.if_contains(name);
    if (list == nullptr || !list->is_array()) return unread();
    for (json::value& one : list->get_array()) {
      QUIRE_ASSIGN_OR_RETURN(const int32_t part, read(one));
      parts.push_back(part);
    }
    return parts;
  }

  Result<int32_t> content(json::object& object) {
    json::value* value = object.if_contains("content");
    return value == nullptr ? Result<int32_t>(unread()) : read(*value);
  }

  static Result<bool> flag(const json::object& object, std::string_view name) {
    const json::value* value = object.if_contains(name);
    if (value == nullptr) return false;
    return value->is_bool() ? Result<bool>(value->get_bool()) : Result<bool>(unread());
  }

  Result<int32_t> read(json::value& value) {
    auto* object = value.if_object();
    const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
    if (type == nullptr || !type->is_string()) return unread();
    const std::string kind(type->get_string());
    if (kind == "const_string" && only(*object, {"type", "value"})) return text(*object, "value");
    if (kind == "grammar" && only(*object, {"type", "grammar"})) return grammar(*object);
    if (kind == "any_text" && only(*object, {"type", "excludes", "max_tokens"})) {
      QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> excluded, texts(*object, "excludes"));
      return builder_.free(excluded);
    }
    if ((kind == "sequence" || kind == "or") && only(*object, {"type", "elements"})) {
      QUIRE_ASSIGN_OR_RETURN(std::vector<int32_t> parts, each(*object, "elements"));
      return kind == "or" ? choice(std::move(parts)) : sequence(std::move(parts));
    }
    if ((kind == "optional" || kind == "plus" || kind == "star") && only(*object, {"type", "content"})) {
      QUIRE_ASSIGN_OR_RETURN(const int32_t part, content(*object));
      return repeat(part, kind == "plus" ? 1 : 0, kind == "optional" ? 1 : -1);
    }
    if (kind == "tag" && only(*object, {"type", "begin", "content", "end"})) return tag(*object);
    if (kind == "tags_with_separator") return tags_with_separator(*object);
    if (kind == "triggered_tags") return triggered_tags(*object);
    return unread();
  }

  Result<int32_t> grammar(json::object& object) {
    json::value* ebnf = object.if_contains("grammar");
    if (ebnf == nullptr || !ebnf->is_string()) return unread();
    grammars_.push_back(ebnf);
    return builder_.grammar(ebnf->get_string());
  }

  Result<int32_t> tag(json::object& object) {
    QUIRE_ASSIGN_OR_RETURN(const int32_t begin, text(object, "begin"));
    QUIRE_ASSIGN_OR_RETURN(const int32_t middle, content(object));
    QUIRE_ASSIGN_OR_RETURN(const int32_t end, text(object, "end"));
    return sequence({begin, middle, end});
  }

  Result<int32_t> tags_with_separator(json::object& object) {
    if (!only(object, {"type", "tags", "separator", "at_least_one", "stop_after_first"})) return unread();
    QUIRE_ASSIGN_OR_RETURN(std::vector<int32_t> tags, each(object, "tags"));
    QUIRE_ASSIGN_OR_RETURN(const int32_t separator, text(object, "separator"));
    QUIRE_ASSIGN_OR_RETURN(const bool at_least_one, flag(object, "at_least_one"));
    QUIRE_ASSIGN_OR_RETURN(const bool only_first, flag(object, "stop_after_first"));
    const int32_t one = choice(std::move(tags));
    const int32_t list = only_first ? one : sequence({one, repeat(sequence({separator, one}), 0, -1)});
    return at_least_one ? list : repeat(list, 0, 1);
  }

  // Free text up to a trigger, with which a tag begins.
  Result<int32_t> triggered_tags(json::object& object) {
    if (!only(object, {"type", "triggers", "tags", "at_least_one", "stop_after_first"})) return unread();
    QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> triggers, texts(object, "triggers"));
    QUIRE_ASSIGN_OR_RETURN(std::vector<int32_t> tags, each(object, "tags"));
    QUIRE_ASSIGN_OR_RETURN(const bool at_least_one, flag(object, "at_least_one"));
    QUIRE_ASSIGN_OR_RETURN(const bool only_first, flag(object, "stop_after_first"));
    if (at_least_one) return unread();
    const int32_t free = builder_.free(triggers);
    const int32_t one = choice(std::move(tags));
    return only_first ? sequence({free, repeat(one, 0, 1)}) : sequence({free, repeat(sequence({one, free}), 0, -1)});
  }

  RulesBuilder builder_;
  std::vector<json::value*> grammars_;  // in the tag, as the builder has them
};

}  // namespace

void put_said(const StructuredOutput& output, json::object& tag) {
  json::array choices;
  for (const std::string& choice : output.choices) choices.emplace_back(choice);
  tag["said"] = {{"kind", static_cast<int>(output.kind)}, {"text", output.text}, {"choices", std::move(choices)}};
}

std::optional<StructuredOutput> take_said(json::object& tag) {
  const json::value* found = tag.if_contains("said");
  if (found == nullptr) return std::nullopt;
  const json::object& said = found->get_object();
  StructuredOutput output{.kind = static_cast<StructuredOutput::Kind>(said.at("kind").to_number<int>()),
                          .text = std::string(said.at("text").get_string())};
  for (const json::value& choice : said.at("choices").get_array()) output.choices.emplace_back(choice.get_string());
  tag.erase("said");
  return output;
}

Result<TagRules> rules_of_tag(std::string_view plain) {
  boost::system::error_code error;
  json::value tag = parse_json(plain, error, {.max_depth = 1024});
  if (error) return invalid_argument("the structural tag is no JSON: {}", error.message());
  return TagReader().run(std::move(tag));
}

Result<std::string> plain_structural_tag(std::string_view text, const TagOptions& asked, const GrammarLimits& limits) {
  boost::system::error_code error;
  const json::value tag = parse_json(text, error, {.max_depth = static_cast<size_t>(limits.max_depth)});
  if (error) return invalid_argument("the structural tag is no JSON: {}", error.message());
  QUIRE_ASSIGN_OR_RETURN(const json::value out, TagTranslation(asked, limits).translate(tag));
  return json::serialize(out);
}

}  // namespace quire::grammar
