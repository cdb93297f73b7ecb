#include "server/structured_fields.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/parse_json.h"
#include "server/api_error.h"

namespace quire::server {
namespace json = boost::json;

namespace {

using Kind = StructuredOutput::Kind;

bool is_absent(const json::value* value) {
  return value == nullptr || value->is_null();
}

// A schema or tag is an object, or the same as text.
std::optional<std::string> json_text(const json::value& value) {
  if (value.is_object() || value.is_bool()) return json::serialize(value);
  if (value.is_string()) return std::string(value.get_string());
  return std::nullopt;
}

class StructuredOutputReader {
 public:
  StructuredOutputReader(JsonFields& fields, std::optional<StructuredOutput>& output, std::string& field)
      : fields_(fields), output_(output), field_(field) {}

  void response_format(const json::object& format) {
    const json::value* type = format.if_contains("type");
    if (type == nullptr || !type->is_string()) {
      return fail("response_format", "response_format needs a type: text, json_object, json_schema or structural_tag.");
    }
    const std::string_view name = type->get_string();
    if (name == "text") return;
    if (name == "json_object") return set("response_format", {.kind = Kind::kJsonObject});
    if (name == "json_schema") return json_schema(format);
    if (name == "structural_tag") return tag("response_format", format);
    fail("response_format", fmt::format("response_format.type is {}; text, json_object, json_schema and structural_tag "
                                        "are supported.",
                                        in_quotes(name, 60)));
  }

  // {json | regex | choice | grammar | json_object | structural_tag: ..., disable_any_whitespace}
  void structured_outputs(const json::object& object) {
    constexpr const char* kField = "structured_outputs";
    for (const auto& member : object) {
      const std::string_view name = member.key();
      if (name == "disable_any_whitespace" || is_absent(&member.value())) continue;
      if (name == "json_object" && member.value().is_bool() && !member.value().get_bool()) continue;
      if (name == "disable_additional_properties" && member.value().is_bool()) {
        if (member.value().get_bool()) continue;  // undeclared properties are made only where a schema allows them
        return fail(kField,
                    "structured_outputs.disable_additional_properties must be true or absent: undeclared "
                    "properties are made where a schema says additionalProperties.");
      }
      one(kField, name, member.value());
    }
    const json::value* tight = object.if_contains("disable_any_whitespace");
    if (is_absent(tight)) return;
    if (!tight->is_bool()) {
      return fail(kField, fmt::format("structured_outputs.disable_any_whitespace must be a boolean, got {}.",
                                      describe(*tight)));
    }
    if (output_) output_->any_whitespace = !tight->get_bool();
  }

  // vLLM's fields of before: guided_json, ...
  void guided(std::string_view field, std::string_view name, const json::value& value) {
    if (is_absent(&value)) return;
    if (value.is_string() && value.get_string().empty()) return;
    if (value.is_array() && value.get_array().empty()) return;
    one(std::string(field), name, value);
  }

 private:
  void one(const std::string& field, std::string_view name, const json::value& value) {
    if (name == "json") {
      const auto text = json_text(value);
      if (!text) return wrong(field, name, "a JSON schema, as an object or as text", value);
      return set(field, {.kind = Kind::kJsonSchema, .text = *text});
    }
    if (name == "json_object") {
      if (!value.is_bool()) return wrong(field, name, "a boolean", value);
      return set(field, {.kind = Kind::kJsonObject});
    }
    if (name == "regex" || name == "grammar") {
      if (!value.is_string()) return wrong(field, name, "a string", value);
      return set(field,
                 {.kind = name == "regex" ? Kind::kRegex : Kind::kGrammar, .text = std::string(value.get_string())});
    }
    if (name == "choice") return choice(field, value);
    if (name == "structural_tag") {
      if (value.is_object()) return tag(field, value.get_object());
      if (!value.is_string()) return wrong(field, name, "a structural tag, as an object or as text", value);
      return tag_text(field, value.get_string());
    }
    fail(field, fmt::format("{}.{} is not supported: json, regex, choice, grammar, json_object and structural_tag are.",
                            field, in_quotes(name, 60)));
  }

  void json_schema(const json::object& format) {
    const json::value* outer = format.if_contains("json_schema");
    if (outer == nullptr || !outer->is_object()) {
      return fail("response_format", "response_format needs json_schema: an object with name and schema.");
    }
    const json::object& holder = outer->get_object();
    const json::value* schema = holder.if_contains("schema");
    if (schema == nullptr || !(schema->is_object() || schema->is_bool())) {
      return fail("response_format", "response_format.json_schema.schema is required: a JSON schema.");
    }
    const json::value* strict = holder.if_contains("strict");  // it is always strict here
    if (!is_absent(strict) && !strict->is_bool()) {
      return fail("response_format", "response_format.json_schema.strict must be a boolean.");
    }
    set("response_format", {.kind = Kind::kJsonSchema, .text = json::serialize(*schema)});
  }

  void choice(const std::string& field, const json::value& value) {
    const auto* list = value.if_array();
    const auto is_string = [](const json::value& item) { return item.is_string(); };
    if (list == nullptr || !std::ranges::all_of(*list, is_string)) {
      return wrong(field, "choice", "a list of strings", value);
    }
    StructuredOutput output{.kind = Kind::kChoice};
    for (const json::value& item : *list) output.choices.emplace_back(item.get_string());
    set(field, std::move(output));
  }

  void tag_text(const std::string& field, std::string_view text) {
    boost::system::error_code error;
    const json::value value = parse_json(text, error);
    if (error) return fail(field, fmt::format("{}: the structural tag is no JSON object: {}.", field, error.message()));
    if (!value.is_object()) return fail(field, fmt::format("{}: the structural tag is no JSON object.", field));
    tag(field, value.get_object());
  }

  // {type, format}, or as it was before: {structures: [{begin, schema, end}], triggers}.
  void tag(const std::string& field, const json::object& object) {
    if (object.contains("format")) {
      json::object out{{"type", "structural_tag"}, {"format", object.at("format")}};
      return set(field, {.kind = Kind::kStructuralTag, .text = json::serialize(out)});
    }
    const json::value* structures = object.if_contains("structures");
    const json::value* triggers = object.if_contains("triggers");
    if (structures == nullptr || triggers == nullptr || !structures->is_array() || !triggers->is_array()) {
      return fail(field, fmt::format("{}: a structural tag has a format, or structures and triggers.", field));
    }
    json::array tags;
    for (const json::value& structure : structures->get_array()) {
      const auto* one = structure.if_object();
      if (one == nullptr || !one->contains("begin") || !one->contains("end")) {
        return fail(field, fmt::format("{}: each of structures needs begin, schema and end.", field));
      }
      const json::value* schema = one->if_contains("schema");
      tags.push_back(json::object{
          {"type", "tag"},
          {"begin", one->at("begin")},
          {"content", {{"type", "json_schema"}, {"json_schema", schema == nullptr ? json::value(true) : *schema}}},
          {"end", one->at("end")}});
    }
    const json::object out{
        {"type", "structural_tag"},
        {"format", {{"type", "triggered_tags"}, {"triggers", *triggers}, {"tags", std::move(tags)}}}};
    set(field, {.kind = Kind::kStructuralTag, .text = json::serialize(out)});
  }

  void set(const std::string& field, StructuredOutput output) {
    if (output_) {
      return fail(field, field == field_
                             ? fmt::format("{} asks for more than one structured output; one is taken.", field)
                             : fmt::format("{} and {} both ask for structured output; one is taken.", field_, field));
    }
    output_ = std::move(output);
    field_ = field;
  }

  void wrong(const std::string& field, std::string_view name, std::string_view expected, const json::value& found) {
    const std::string place = field == "structured_outputs" ? fmt::format("{}.{}", field, name) : field;
    fail(field, fmt::format("{} must be {}, got {}.", place, expected, describe(found)));
  }

  void fail(std::string_view field, std::string message) { fields_.fail(field, std::move(message)); }

  JsonFields& fields_;
  std::optional<StructuredOutput>& output_;
  std::string& field_;
};

}  // namespace

void read_structured_output(JsonFields& fields, std::optional<StructuredOutput>& output, std::string& field) {
  StructuredOutputReader reader(fields, output, field);
  if (const json::object* format = fields.object("response_format")) reader.response_format(*format);
  if (const json::object* object = fields.object("structured_outputs")) reader.structured_outputs(*object);
  constexpr std::pair<std::string_view, std::string_view> kGuided[] = {{"guided_json", "json"},
                                                                       {"guided_regex", "regex"},
                                                                       {"guided_choice", "choice"},
                                                                       {"guided_grammar", "grammar"},
                                                                       {"structural_tag", "structural_tag"}};
  for (const auto& [name, kind] : kGuided) {
    if (const json::value* value = fields.any(name)) reader.guided(name, kind, *value);
  }
}

}  // namespace quire::server
