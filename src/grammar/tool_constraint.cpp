// Readings as structural tags.
#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "grammar/schema.h"
#include "grammar/structural_tag.h"
#include "grammar/tool_formats.h"
#include "grammar/xml_arguments.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

json::object text_of(std::string_view value) {
  return {{"type", "const_string"}, {"value", value}};
}

json::object sequence(json::array elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

json::object tag(std::string_view begin, json::object content, std::string_view end) {
  return {{"type", "tag"}, {"begin", begin}, {"content", std::move(content)}, {"end", end}};
}

json::object schema_of(const ToolFunction& function) {
  return {{"type", "json_schema"}, {"json_schema", function.parameters}};
}

// As JSON writes it, without the quotes.
std::string escaped(std::string_view name) {
  const std::string quoted = json::serialize(json::value(name));
  return quoted.substr(1, quoted.size() - 2);
}

// {"name": "f", "arguments": ...} with what stands around it.
json::object object_call(const ToolFunction& function, std::string_view before, std::string_view key,
                         std::string_view after) {
  return tag(fmt::format("{}{{\"name\": \"{}\", \"{}\": ", before, escaped(function.name), key), schema_of(function),
             fmt::format("}}{}", after));
}

json::object kimi_call(const ToolFunction& function) {
  return tag(fmt::format("{}functions.{}:", kKimiCall, function.name),
             sequence({json::object{{"type", "regex"}, {"pattern", "[0-9]{1,3}"}}, text_of(kKimiArguments),
                       schema_of(function)}),
             kKimiCallEnd);
}

json::object deepseek_call(const ToolFunction& function) {
  return tag(fmt::format("{}function{}{}\n```json\n", kDeepseekCall, kDeepseekSeparator, function.name),
             schema_of(function), fmt::format("\n```{}", kDeepseekCallEnd));
}

// name(key=value, ...): the required parameters in their order, then others that may be.
json::object python_call(const ToolFunction& function) {
  json::array elements;
  const auto* schema = function.parameters.if_object();
  const json::value* properties = schema == nullptr ? nullptr : schema->if_contains("properties");
  const json::value* required = schema == nullptr ? nullptr : schema->if_contains("required");
  const auto is_required = [required](std::string_view name) {
    const auto* names = required == nullptr ? nullptr : required->if_array();
    return names != nullptr && std::ranges::any_of(*names, [&](const json::value& one) {
             return one.is_string() && one.get_string() == name;
           });
  };
  const auto argument = [](std::string_view before, const auto& member) {
    json::object value{{"type", "json_schema"}, {"json_schema", member.value()}};
    return sequence({text_of(fmt::format("{}{}=", before, std::string_view(member.key()))), std::move(value)});
  };
  const auto optional = [](json::object content) {
    return json::object{{"type", "optional"}, {"content", std::move(content)}};
  };
  std::vector<const json::key_value_pair*> others;
  if (properties != nullptr && properties->is_object()) {
    for (const auto& member : properties->get_object()) {
      if (is_required(member.key())) {
        elements.emplace_back(argument(elements.empty() ? "" : ", ", member));
      } else {
        others.push_back(&member);
      }
    }
  }
  const bool any = !elements.empty() || !others.empty();
  // What may be left out stands behind what is there; where nothing must be, behind the first of them that is.
  constexpr size_t kMostFirst = 16;
  json::array firsts;
  for (size_t first = 0; elements.empty() && first < std::min(others.size(), kMostFirst); ++first) {
    json::array from_here{argument("", *others[first])};
    for (size_t i = first + 1; i < others.size(); ++i) from_here.emplace_back(optional(argument(", ", *others[i])));
    firsts.emplace_back(sequence(std::move(from_here)));
  }
  if (!firsts.empty()) {
    elements.emplace_back(optional(json::object{{"type", "or"}, {"elements", std::move(firsts)}}));
  } else {
    for (const json::key_value_pair* member : others) elements.emplace_back(optional(argument(", ", *member)));
  }
  if (elements.empty()) elements.emplace_back(text_of(""));
  json::object call = tag(fmt::format("{}(", function.name), sequence(std::move(elements)), ")");
  if (!any) call = tag(fmt::format("{}(", function.name), text_of(")"), "");
  return call;
}

json::object list_of(json::array tags, std::string_view separator, bool parallel) {
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", separator},
          {"at_least_one", true},
          {"stop_after_first", !parallel}};
}

// How calls are written: either each is a tag that begins with `trigger` and may stand anywhere, or all of them
// together are one such tag (`whole`).
struct Calls {
  std::string trigger;  // empty: calls are the whole answer
  json::array tags;
  bool whole = false;
};

// REQUIRES: xml_arguments() of every function where the format is one of elements.
Calls calls_of(const AnswerReading& reading, const GrammarLimits& limits) {
  Calls calls;
  json::array each;
  if (const XmlCallFormat* xml = format_in(kXmlCallFormats, reading.tools)) {
    calls.trigger = xml->open;
    for (const ToolFunction& function : reading.functions) {
      const bool named_outside = xml->call.empty();
      calls.tags.emplace_back(
          tag(fmt::format("{}{}{}{}{}{}\n", xml->open, named_outside ? "" : "\n", xml->before_call, xml->call,
                          function.name, xml->call_named),
              *xml_arguments(function.parameters, *xml, limits),
              fmt::format("{}{}{}{}", xml->call_end, xml->after_call, named_outside ? "" : "\n", xml->close)));
    }
    return calls;
  }
  const JsonCallFormat* format = format_in(kJsonCallFormats, reading.tools);
  for (const ToolFunction& function : reading.functions) {
    switch (reading.tools) {
      case ToolFormat::kHermes:
        calls.tags.emplace_back(object_call(function, "<tool_call>\n", "arguments", "\n</tool_call>"));
        break;
      case ToolFormat::kLlama3Json:
        each.emplace_back(object_call(function, "", "parameters", ""));
        break;
      case ToolFormat::kGranite:
      case ToolFormat::kJamba:
      case ToolFormat::kNemotron:
      case ToolFormat::kPhi4Mini:
        each.emplace_back(object_call(function, "", "arguments", ""));
        break;
      case ToolFormat::kInternlm:
        calls.tags.emplace_back(object_call(function, "<|action_start|><|plugin|>\n", "parameters", "<|action_end|>"));
        break;
      case ToolFormat::kDeepseekV31:
        each.emplace_back(tag(fmt::format("{}{}{}", kDeepseekCall, function.name, kDeepseekSeparator),
                              schema_of(function), kDeepseekCallEnd));
        break;
      case ToolFormat::kMistral:
        if (reading.mistral_args) {
          calls.tags.emplace_back(tag(fmt::format("[TOOL_CALLS]{}[ARGS]", function.name), schema_of(function), ""));
        } else {
          each.emplace_back(object_call(function, "", "arguments", ""));
        }
        break;
      case ToolFormat::kDeepseekV3:
        each.emplace_back(deepseek_call(function));
        break;
      case ToolFormat::kGemma4:
        calls.tags.emplace_back(
            tag(fmt::format("{}call:{}", kGemmaCall, function.name), schema_of(function), kGemmaCallEnd));
        break;
      case ToolFormat::kKimiK2:
        each.emplace_back(kimi_call(function));
        break;
      case ToolFormat::kPythonic:
      case ToolFormat::kLlama4Pythonic:
      case ToolFormat::kLfm2:
      case ToolFormat::kOlmo3:
        each.emplace_back(python_call(function));
        break;
      default:
        break;
    }
  }
  calls.trigger = format == nullptr ? "" : format->open;
  if (reading.tools == ToolFormat::kGemma4) calls.trigger = kGemmaCall;
  if (const auto* python = format_in(kPythonCallFormats, reading.tools)) calls.trigger = python->open;
  if (each.empty()) return calls;
  calls.whole = true;
  const CallsShape shape = calls_shape(reading.tools);
  json::object list = list_of(std::move(each), shape.separator, reading.parallel);
  if (shape.begin.empty()) {
    calls.tags.emplace_back(std::move(list));
  } else {
    calls.tags.emplace_back(tag(shape.begin, std::move(list), shape.end));
  }
  return calls;
}

// Text in which calls may stand, or calls alone. nullopt: free text that is read for calls as they come.
std::optional<json::object> tools_part(const AnswerReading& reading, const GrammarLimits& limits) {
  const bool must = reading.choice != ToolChoice::kAuto;
  // What must be heeded to the letter is constrained as JSON; the model's own spelling of values is another.
  if (reading.tools == ToolFormat::kGemma4 && !must && std::ranges::none_of(reading.functions, &ToolFunction::strict))
    return std::nullopt;
  Calls calls = calls_of(reading, limits);
  if (calls.tags.empty()) return std::nullopt;
  if (calls.trigger.empty() || (must && calls.whole)) {
    // Whether the whole answer is calls or text shows with its first words: what is said is not to be constrained.
    if (!must) return std::nullopt;
    return calls.tags.front().get_object();
  }
  const bool stand_close = reading.tools == ToolFormat::kMistral || reading.tools == ToolFormat::kGemma4;
  if (must) return list_of(std::move(calls.tags), stand_close ? "" : "\n", reading.parallel);
  return json::object{{"type", "triggered_tags"},
                      {"triggers", {calls.trigger}},
                      {"tags", std::move(calls.tags)},
                      {"at_least_one", false},
                      {"stop_after_first", calls.whole || !reading.parallel}};
}

// REQUIRES: checked (check_structured_output), so that it is JSON.
json::value parsed(const std::string& text) {
  json::parse_options options;
  options.max_depth = 1024;
  return json::parse(text, {}, options);
}

std::optional<json::object> output_part(const StructuredOutput& output) {
  switch (output.kind) {
    case StructuredOutput::Kind::kJsonObject:
      return json::object{{"type", "json_schema"},
                          {"json_schema", {{"type", "object"}, {"additionalProperties", true}}}};
    case StructuredOutput::Kind::kJsonSchema:
      return json::object{{"type", "json_schema"}, {"json_schema", parsed(output.text)}};
    case StructuredOutput::Kind::kRegex:
      return json::object{{"type", "regex"}, {"pattern", output.text}};
    case StructuredOutput::Kind::kGrammar:
      return json::object{{"type", "grammar"}, {"grammar", output.text}};
    case StructuredOutput::Kind::kChoice: {
      json::array elements;
      for (const std::string& choice : output.choices) elements.emplace_back(text_of(choice));
      return json::object{{"type", "or"}, {"elements", std::move(elements)}};
    }
    case StructuredOutput::Kind::kStructuralTag: {
      const json::value tag = parsed(output.text);
      const auto* object = tag.if_object();
      const json::value* format = object == nullptr ? nullptr : object->if_contains("format");
      if (format == nullptr || !format->is_object()) return std::nullopt;
      return format->get_object();
    }
  }
  return std::nullopt;
}

json::object reasoning_part(const AnswerReading& reading, const ReasoningMarks& marks) {
  json::object thought{{"type", "any_text"}, {"excludes", {marks.end}}};
  if (reading.reasoning_budget) thought["max_tokens"] = *reading.reasoning_budget;
  // Line ends stand between the mark and the answer.
  const json::object gap{{"type", "regex"}, {"pattern", "\\n{0,3}"}};
  if (reading.begun) return sequence({tag("", std::move(thought), marks.end), gap});
  return {{"type", "optional"}, {"content", sequence({tag(marks.begin, std::move(thought), marks.end), gap})}};
}

constexpr std::string_view kHarmonyMarks[] = {"<|end|>",  "<|start|>",     "<|channel|>", "<|message|>",
                                              "<|call|>", "<|constrain|>", "<|return|>"};

// gpt-oss's messages (channel_parser.cpp) up to the one whose head and content `main` is. What ends it, <|call|> or
// <|return|>, are end tokens.
json::object behind_analysis(const AnswerReading& reading, json::object main) {
  if (reading.reasoning != ReasoningFormat::kGptOss) return main;
  json::array excluded;
  for (const std::string_view mark : kHarmonyMarks) excluded.emplace_back(mark);
  json::object thought{{"type", "any_text"}, {"excludes", std::move(excluded)}};
  if (reading.reasoning_budget) thought["max_tokens"] = *reading.reasoning_budget;
  json::object analysis = tag("<|channel|>analysis<|message|>", std::move(thought), "<|end|><|start|>assistant");
  return sequence({json::object{{"type", "optional"}, {"content", std::move(analysis)}}, std::move(main)});
}

json::object channel_call(const AnswerReading& reading) {
  json::array calls;
  for (const ToolFunction& function : reading.functions) {
    calls.emplace_back(
        tag(fmt::format("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", function.name),
            schema_of(function), ""));
  }
  return json::object{{"type", "or"}, {"elements", std::move(calls)}};
}

// Makes a schema one of objects alone, for arguments are none else. False: it is of none.
bool as_object(json::value& schema) {
  if (schema.is_bool()) {
    if (!schema.get_bool()) return false;
    schema = json::object();
  }
  json::object* object = schema.if_object();
  if (object == nullptr) return false;
  const json::value* type = object->if_contains("type");
  const auto is_object = [](const json::value& one) { return one == "object"; };
  const json::array* types = type == nullptr ? nullptr : type->if_array();
  if (type != nullptr && !is_object(*type) && (types == nullptr || std::ranges::none_of(*types, is_object)))
    return false;
  (*object)["type"] = "object";
  return true;
}

// `said`: the output of the answer without its reasoning.
StructuredOutput structural_tag(json::object format, const std::optional<StructuredOutput>& said) {
  json::object whole{{"type", "structural_tag"}, {"format", std::move(format)}};
  StructuredOutput out{.kind = StructuredOutput::Kind::kStructuralTag};
  if (said) {
    put_said(*said, whole);
    out.any_whitespace = said->any_whitespace;
  }
  out.text = json::serialize(whole);
  out.special_tokens = true;
  return out;
}

}  // namespace

Result<std::optional<StructuredOutput>> constraint_of(const AnswerReading& asked,
                                                      const std::optional<StructuredOutput>& output,
                                                      const GrammarLimits& limits) {
  AnswerReading reading = asked;
  const XmlCallFormat* xml = format_in(kXmlCallFormats, reading.tools);
  for (ToolFunction& function : reading.functions) {
    Status status = as_object(function.parameters) ? check_whole_schema(function.parameters, limits)
                                                   : invalid_argument("parameters must be the schema of an object");
    if (status.ok() && xml != nullptr) status = xml_arguments(function.parameters, *xml, limits).status();
    if (status.ok()) continue;
    if (function.strict) {
      return invalid_argument("tool {}: {}", function.name, status.message()).with_param("tools");
    }
    function.parameters = json::object{{"type", "object"}, {"additionalProperties", true}};
  }
  std::optional<json::object> main;
  if (output) {
    QUIRE_RETURN_IF_ERROR(check_structured_output(*output, limits));
    StructuredOutput part = *output;
    if (part.kind == StructuredOutput::Kind::kStructuralTag) {
      QUIRE_ASSIGN_OR_RETURN(part.text,
                             plain_structural_tag(part.text, {.any_whitespace = part.any_whitespace}, limits));
    }
    main = output_part(part);
    if (!main) return invalid_argument("the structural tag has no format").with_param("structured_outputs");
  } else if (reading.reads_tools()) {
    if (reading.choice != ToolChoice::kAuto && reading.tools == ToolFormat::kGptOss) {
      return std::optional(structural_tag(behind_analysis(reading, channel_call(reading)), std::nullopt));
    }
    main = tools_part(reading, limits);
  }
  const ReasoningMarks* marks = format_in(kReasoningMarks, reading.reasoning);
  if (output && reading.reasoning == ReasoningFormat::kGptOss) {
    json::object answer = tag("<|channel|>final<|message|>", std::move(*main), "");
    return std::optional(structural_tag(behind_analysis(reading, std::move(answer)), output));
  }
  if (marks == nullptr || (!main && !reading.reasoning_budget)) {
    if (!main) return std::optional<StructuredOutput>();
    if (output) return output;  // nothing around it
  }
  if (marks != nullptr) {
    if (!main) main = json::object{{"type", "any_text"}, {"excludes", {marks->end}}};
    main = sequence({reasoning_part(reading, *marks), std::move(*main)});
  }
  return std::optional(structural_tag(std::move(*main), output));
}

}  // namespace quire::grammar
