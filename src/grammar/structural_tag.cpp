#include "grammar/structural_tag.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <boost/json.hpp>

#include "grammar/regex.h"
#include "grammar/schema.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr std::array<std::string_view, 12> kKinds = {
    "const_string",        "any_text", "sequence", "or",     "tag",    "triggered_tags", "optional",
    "tags_with_separator", "plus",     "star",     "repeat", "grammar"};

class TagTranslation {
 public:
  TagTranslation(const TagOptions& options, const GrammarLimits& limits)
      : any_whitespace_(options.any_whitespace), styles_(options.styles), limits_(limits) {}

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
      if (styles_) return json::value(object);
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
  bool styles_;
  const GrammarLimits& limits_;
};

}  // namespace

Result<std::string> plain_structural_tag(std::string_view text, const TagOptions& asked, const GrammarLimits& limits) {
  json::parse_options options;
  options.max_depth = static_cast<size_t>(limits.max_depth);
  boost::system::error_code error;
  const json::value tag = json::parse(text, error, {}, options);
  if (error) return invalid_argument("the structural tag is no JSON: {}", error.message());
  QUIRE_ASSIGN_OR_RETURN(const json::value out, TagTranslation(asked, limits).translate(tag));
  return json::serialize(out);
}

}  // namespace quire::grammar
