#include "grammar/xml_arguments.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "grammar/formats.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "grammar/schema_parts.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr std::array<std::string_view, 10> kKnown = {"type",    "properties",  "required", "additionalProperties",
                                                     "title",   "description", "$defs",    "definitions",
                                                     "$schema", "$id"};

const CodePoints& left_out() {
  static const CodePoints points{{'\t', '\t'}, {'\n', '\n'}, {'\r', '\r'}, {'<', '<'}};
  return points;
}

json::object any_text(const XmlCallFormat& format) {
  return {{"type", "any_text"}, {"excludes", {format.value_end}}};
}

json::object grammar(std::string ebnf) {
  return {{"type", "grammar"}, {"grammar", "root ::= " + std::move(ebnf)}};
}

int64_t number_or(const json::object& schema, std::string_view name, int64_t otherwise) {
  const json::value* value = schema.if_contains(name);
  return value == nullptr ? otherwise : value->to_number<int64_t>();
}

class Arguments {
 public:
  Arguments(const XmlCallFormat& format, const GrammarLimits& limits) : format_(format), limits_(limits) {}

  Result<json::object> run(const json::value& value) {
    const auto* schema = value.if_object();
    if (schema == nullptr) return any();
    for (const auto& member : *schema) {
      if (std::ranges::find(kKnown, std::string_view(member.key())) == kKnown.end()) {
        return invalid_argument("\"{}\" of the parameters cannot be heeded in this format of calls",
                                std::string_view(member.key()).substr(0, 60));
      }
    }
    const json::value* properties = schema->if_contains("properties");
    const json::value* required = schema->if_contains("required");
    if (properties == nullptr && required == nullptr) return any();
    json::array elements;
    size_t found = 0;
    static const json::object kNone;
    for (const auto& member : properties == nullptr ? kNone : properties->get_object()) {
      const std::string_view name = member.key();
      const bool is_required = names(required, name);
      found += is_required ? 1 : 0;
      QUIRE_ASSIGN_OR_RETURN(json::object one, parameter(*schema, name, member.value()));
      if (is_required) {
        elements.emplace_back(std::move(one));
      } else {
        elements.push_back(json::object{{"type", "optional"}, {"content", std::move(one)}});
      }
    }
    if (required != nullptr && found < required->get_array().size()) {
      return invalid_argument("required names a parameter that is not declared");
    }
    if (elements.empty()) elements.push_back(json::object{{"type", "const_string"}, {"value", ""}});
    return json::object{{"type", "sequence"}, {"elements", std::move(elements)}};
  }

 private:
  static bool names(const json::value* required, std::string_view name) {
    return required != nullptr && std::ranges::any_of(required->get_array(), [name](const json::value& one) {
             return std::string_view(one.get_string()) == name;
           });
  }

  json::object element(std::string_view name, json::object value) const {
    const char* line_end = format_.line_ends ? "\n" : "";
    return {{"type", "tag"},
            {"begin", fmt::format("{}{}{}{}{}", format_.key, name, format_.key_end, before_value(), line_end)},
            {"content", std::move(value)},
            {"end", fmt::format("{}{}\n", line_end, format_.value_end)}};
  }

  std::string before_value() const { return format_.value.empty() ? "" : fmt::format("\n{}", format_.value); }

  json::object any() const {
    const char* line_end = format_.line_ends ? "\n" : "";
    json::array elements;
    elements.push_back(json::object{{"type", "const_string"}, {"value", format_.key}});
    elements.emplace_back(grammar("[A-Za-z_] [A-Za-z0-9_]{0,63}"));
    elements.push_back(json::object{{"type", "tag"},
                                    {"begin", fmt::format("{}{}{}", format_.key_end, before_value(), line_end)},
                                    {"content", any_text(format_)},
                                    {"end", fmt::format("{}{}\n", line_end, format_.value_end)}});
    return {{"type", "star"}, {"content", json::object{{"type", "sequence"}, {"elements", std::move(elements)}}}};
  }

  Result<json::object> parameter(const json::object& whole, std::string_view name, const json::value& schema) const {
    const bool is_plain = !name.empty() && name.find_first_of("<>\"\n\r\t ") == std::string_view::npos;
    if (!is_plain) return invalid_argument("a parameter's name with blanks, quotes, '<' or '>'");
    const auto* object = schema.if_object();
    if (object == nullptr && schema != json::value(true)) return invalid_argument("a parameter that nothing satisfies");
    if (object != nullptr) {
      if (const json::value* value = object->if_contains("const")) return listed(name, {*value});
      if (const json::value* values = object->if_contains("enum")) return listed(name, values->get_array());
      const json::value* type = object->if_contains("type");
      if (type != nullptr && *type == json::value("string")) return string(name, *object);
    }
    json::value alone = schema;
    for (const std::string_view definitions : {"$defs", "definitions"}) {
      const json::value* all = whole.if_contains(definitions);
      if (all != nullptr && alone.is_object()) alone.get_object().emplace(definitions, *all);
    }
    QUIRE_RETURN_IF_ERROR(check_whole_schema(alone, limits_));
    return element(name, json::object{{"type", "json_schema"}, {"json_schema", std::move(alone)}});
  }

  // Strings among them as they are.
  Result<json::object> listed(std::string_view name, const json::array& values) const {
    json::array ways;
    for (const json::value& value : values) {
      const std::string text = value.is_string() ? std::string(value.get_string()) : json_text(value);
      constexpr std::string_view kSpace = " \n\t\r";
      const bool is_plain = text.find(format_.value_end) == std::string::npos &&
                            (text.empty() || (kSpace.find(text.front()) == std::string_view::npos &&
                                              kSpace.find(text.back()) == std::string_view::npos));
      if (!is_plain) return invalid_argument("a listed value with blanks around it, or with a mark of the format");
      ways.push_back(json::object{{"type", "const_string"}, {"value", text}});
    }
    return element(name, json::object{{"type", "or"}, {"elements", std::move(ways)}});
  }

  Result<json::object> string(std::string_view name, const json::object& schema) const {
    const json::value* pattern = schema.if_contains("pattern");
    const json::value* format = schema.if_contains("format");
    if (pattern != nullptr || format != nullptr) {
      const std::string_view text =
          pattern != nullptr ? std::string_view(pattern->get_string()) : format_pattern(format->get_string());
      QUIRE_ASSIGN_OR_RETURN(const Regex regex, Regex::parse(text, limits_));
      QUIRE_ASSIGN_OR_RETURN(const std::string value,
                             ebnf_of_length(regex.without(left_out()), schema, Spelling::kText));
      return element(name, grammar(value));
    }
    if (!schema.contains("minLength") && !schema.contains("maxLength")) return element(name, any_text(format_));
    const int64_t least = number_or(schema, "minLength", 0);
    const int64_t most = number_or(schema, "maxLength", -1);
    if (most == 0) return element(name, grammar("\"\""));
    const std::string set = ebnf_of(left_out().complement(), Spelling::kText);
    return element(
        name, grammar(most < 0 ? fmt::format("{}{{{},}}", set, least) : fmt::format("{}{{{},{}}}", set, least, most)));
  }

  const XmlCallFormat& format_;
  const GrammarLimits& limits_;
};

}  // namespace

Result<json::object> xml_arguments(const json::value& schema, const XmlCallFormat& format,
                                   const GrammarLimits& limits) {
  return Arguments(format, limits).run(schema);
}

}  // namespace quire::grammar
