#include "grammar/tool_formats.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr std::array<std::pair<std::string_view, ToolFormat>, 35> kToolNames = {{
    {"none", ToolFormat::kNone},
    {"hermes", ToolFormat::kHermes},
    {"llama3_json", ToolFormat::kLlama3Json},
    {"mistral", ToolFormat::kMistral},
    {"qwen3_coder", ToolFormat::kQwen3Coder},
    {"pythonic", ToolFormat::kPythonic},
    {"deepseek_v3", ToolFormat::kDeepseekV3},
    {"glm45", ToolFormat::kGlm},
    {"granite", ToolFormat::kGranite},
    {"kimi_k2", ToolFormat::kKimiK2},
    {"minimax_m2", ToolFormat::kMinimaxM2},
    {"openai", ToolFormat::kGptOss},
    {"llama4_pythonic", ToolFormat::kLlama4Pythonic},
    {"deepseek_v31", ToolFormat::kDeepseekV31},
    {"internlm", ToolFormat::kInternlm},
    {"jamba", ToolFormat::kJamba},
    {"phi4_mini_json", ToolFormat::kPhi4Mini},
    {"step3", ToolFormat::kStep3},
    {"gemma4", ToolFormat::kGemma4},
    {"nemotron_json", ToolFormat::kNemotron},
    {"seed_oss", ToolFormat::kSeedOss},
    {"lfm2", ToolFormat::kLfm2},
    {"olmo3", ToolFormat::kOlmo3},
    // Other names of the same.
    {"llama4_json", ToolFormat::kLlama3Json},
    {"qwen3_xml", ToolFormat::kQwen3Coder},
    {"hunyuan_a13b", ToolFormat::kJamba},
    {"hunyuan", ToolFormat::kJamba},
    {"phi4_mini", ToolFormat::kPhi4Mini},
    {"glm", ToolFormat::kGlm},
    {"glm47", ToolFormat::kGlm},
    {"minimax", ToolFormat::kMinimaxM2},
    {"gpt-oss", ToolFormat::kGptOss},
    {"harmony", ToolFormat::kGptOss},
    {"ernie45", ToolFormat::kHermes},
    {"nemotron", ToolFormat::kNemotron},
}};

constexpr std::array<std::pair<std::string_view, ReasoningFormat>, 16> kReasoningNames = {{
    {"none", ReasoningFormat::kNone},
    {"deepseek_r1", ReasoningFormat::kThink},
    {"granite", ReasoningFormat::kGranite},
    {"mistral", ReasoningFormat::kMistral},
    {"openai_gptoss", ReasoningFormat::kGptOss},
    {"gemma4", ReasoningFormat::kGemma4},
    {"seed_oss", ReasoningFormat::kSeedOss},
    // Other names of the same.
    {"qwen3", ReasoningFormat::kThink},
    {"glm45", ReasoningFormat::kThink},
    {"glm", ReasoningFormat::kThink},
    {"deepseek_v3", ReasoningFormat::kThink},
    {"minimax_m2", ReasoningFormat::kThink},
    {"kimi_k2", ReasoningFormat::kThink},
    {"olmo3", ReasoningFormat::kThink},
    {"ernie45", ReasoningFormat::kThink},
    {"gpt-oss", ReasoningFormat::kGptOss},
}};

template <typename Names>
auto by_name(const Names& names, std::string_view name, std::string_view what)
    -> Result<decltype(names.front().second)> {
  std::string known;
  for (const auto& [one, format] : names) {
    if (one == name) return format;
    if (!known.empty()) known += ", ";
    known += one;
  }
  return invalid_argument("there is no {} \"{}\"; there are: auto, {}", what, name.substr(0, 60), known);
}

template <typename Names, typename Format>
std::string_view name_of(const Names& names, Format format) {
  for (const auto& [name, one] : names) {
    if (one == format) return name;
  }
  return "none";
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

Result<ToolFormat> tool_format(std::string_view name) {
  return by_name(kToolNames, name, "tool-call parser");
}
Result<ReasoningFormat> reasoning_format(std::string_view name) {
  return by_name(kReasoningNames, name, "reasoning parser");
}
std::string_view to_string(ToolFormat format) {
  return name_of(kToolNames, format);
}
std::string_view to_string(ReasoningFormat format) {
  return name_of(kReasoningNames, format);
}

bool knows_tools(std::string_view chat_template) {
  return has(chat_template, "tools");
}

// By the marks that the template itself writes around calls of earlier turns: the rarest first.
ToolFormat tool_format_of(std::string_view chat_template) {
  constexpr std::array<std::pair<std::string_view, ToolFormat>, 21> kMarks = {{
      {"<|tool_calls_section_begin|>", ToolFormat::kKimiK2},
      {"<｜tool▁calls▁begin｜>", ToolFormat::kDeepseekV3},
      {"<minimax:tool_call>", ToolFormat::kMinimaxM2},
      {"<seed:tool_call>", ToolFormat::kSeedOss},
      {"<TOOLCALL>", ToolFormat::kNemotron},
      {"<|tool_list_start|>", ToolFormat::kLfm2},
      {"<function_calls>", ToolFormat::kOlmo3},
      {"<steptml:invoke", ToolFormat::kStep3},
      {"<|action_start|>", ToolFormat::kInternlm},
      {"<|python_start|>", ToolFormat::kLlama4Pythonic},
      {"<|channel|>", ToolFormat::kGptOss},
      {"<arg_key>", ToolFormat::kGlm},
      {"<function=", ToolFormat::kQwen3Coder},
      {"[TOOL_CALLS]", ToolFormat::kMistral},
      {"functools[", ToolFormat::kPhi4Mini},
      {"<|tool_call|>", ToolFormat::kGranite},
      {kGemmaCall, ToolFormat::kGemma4},
      {"<tool_calls>", ToolFormat::kJamba},
      {"<tool_call>", ToolFormat::kHermes},
      {"func_name1(", ToolFormat::kPythonic},
      {"\"parameters\": ", ToolFormat::kLlama3Json},
  }};
  if (!knows_tools(chat_template)) return ToolFormat::kHermes;
  for (const auto& [mark, format] : kMarks) {
    if (!has(chat_template, mark)) continue;
    // V3 and R1 write arguments as a block of code, V3.1 and later as they are.
    const bool is_v31 = format == ToolFormat::kDeepseekV3 && !has(chat_template, "```json");
    return is_v31 ? ToolFormat::kDeepseekV31 : format;
  }
  return ToolFormat::kHermes;
}

bool ends_in_reasoning(ReasoningFormat format, std::string_view prompt) {
  const ReasoningMarks* marks = format_in(kReasoningMarks, format);
  if (marks == nullptr) return false;
  const size_t begin = prompt.rfind(marks->begin);
  if (begin == std::string_view::npos) return false;
  return prompt.find_first_not_of(" \n\t\r", begin + marks->begin.size()) == std::string_view::npos;
}

bool is_mark(std::string_view spelling) {
  if (spelling.empty()) return false;
  constexpr std::string_view kOthers[] = {
      kPythonTag,    kDeepseekCall,  kDeepseekSeparator, kDeepseekCallEnd,   kStepCall,    kStepSeparator,
      kStepCallEnd,  kPythonStart,   kPythonEnd,         "<|action_start|>", "<|plugin|>", "<|interpreter|>",
      kKimiCall,     kKimiArguments, kKimiCallEnd,       "[ARGS]",           "[CALL_ID]",  "<|channel|>",
      "<|message|>", "<|start|>",    "<|end|>",          "<|call|>",         "<|return|>", "<|constrain|>",
      kGemmaCall,    kGemmaCallEnd,  kGemmaQuote,        "<|channel>"};
  const auto is = [spelling](std::string_view mark) { return mark == spelling; };
  return std::ranges::any_of(kOthers, is) ||
         std::ranges::any_of(kJsonCallFormats, [&](const auto& f) { return is(f.open) || is(f.close); }) ||
         std::ranges::any_of(kPythonCallFormats, [&](const auto& f) { return is(f.open) || is(f.close); }) ||
         std::ranges::any_of(kReasoningMarks, [&](const auto& f) { return is(f.begin) || is(f.end); }) ||
         std::ranges::any_of(kXmlCallFormats, [&](const auto& f) {
           return is(f.open) || is(f.close) || is(f.call_end) || is(f.key) || is(f.key_end) || is(f.value) ||
                  is(f.value_end);
         });
}

namespace {

std::string object_text(std::string_view name, const json::object& arguments, std::string_view key) {
  return fmt::format("{{\"name\": {}, \"{}\": {}}}", json::serialize(json::value(name)), key,
                     json::serialize(arguments));
}

std::string python_text(std::string_view name, const json::object& arguments) {
  std::string out = fmt::format("{}(", name);
  for (const auto& member : arguments) {
    out += fmt::format("{}{}={}", out.back() == '(' ? "" : ", ", std::string_view(member.key()),
                       json::serialize(member.value()));
  }
  return out + ")";
}

std::string xml_text(const XmlCallFormat& format, std::string_view name, const json::object& arguments) {
  const char* line_end = format.line_ends ? "\n" : "";
  std::string out = fmt::format("{}{}{}{}{}{}\n", format.open, format.call.empty() ? "" : "\n", format.before_call,
                                format.call, name, format.call_named);
  for (const auto& member : arguments) {
    const json::value& value = member.value();
    out += fmt::format("{}{}{}{}{}{}{}{}\n", format.key, std::string_view(member.key()), format.key_end, format.value,
                       line_end, value.is_string() ? std::string(value.get_string()) : json::serialize(value), line_end,
                       format.value_end);
  }
  return out +
         fmt::format("{}{}{}{}", format.call_end, format.after_call, format.call.empty() ? "" : "\n", format.close);
}

std::string gemma_text(const json::value& value) {
  std::string out;
  if (const json::object* object = value.if_object()) {
    for (const auto& member : *object)
      out += fmt::format("{}{}:{}", out.empty() ? "" : ",", std::string_view(member.key()), gemma_text(member.value()));
    return "{" + out + "}";
  }
  if (const json::array* array = value.if_array()) {
    for (const json::value& one : *array) out += (out.empty() ? "" : ",") + gemma_text(one);
    return "[" + out + "]";
  }
  if (const json::string* text = value.if_string())
    return fmt::format("{}{}{}", kGemmaQuote, std::string_view(*text), kGemmaQuote);
  return json::serialize(value);
}

// One of those that stand side by side.
std::string call_text(ToolFormat format, size_t index, std::string_view name, const json::object& arguments) {
  const std::string plain = json::serialize(arguments);
  switch (format) {
    case ToolFormat::kMistral:
    case ToolFormat::kGranite:
    case ToolFormat::kJamba:
    case ToolFormat::kNemotron:
    case ToolFormat::kPhi4Mini:
      return object_text(name, arguments, "arguments");
    case ToolFormat::kLlama3Json:
      return object_text(name, arguments, "parameters");
    case ToolFormat::kInternlm:
      return fmt::format("<|action_start|><|plugin|>\n{}<|action_end|>", object_text(name, arguments, "parameters"));
    case ToolFormat::kPythonic:
    case ToolFormat::kLlama4Pythonic:
    case ToolFormat::kLfm2:
    case ToolFormat::kOlmo3:
      return python_text(name, arguments);
    case ToolFormat::kDeepseekV3:
      return fmt::format("{}function{}{}\n```json\n{}\n```{}", kDeepseekCall, kDeepseekSeparator, name, plain,
                         kDeepseekCallEnd);
    case ToolFormat::kDeepseekV31:
      return fmt::format("{}{}{}{}{}", kDeepseekCall, name, kDeepseekSeparator, plain, kDeepseekCallEnd);
    case ToolFormat::kGemma4:
      return fmt::format("{}call:{}{}{}", kGemmaCall, name, gemma_text(arguments), kGemmaCallEnd);
    case ToolFormat::kKimiK2:
      return fmt::format("{}functions.{}:{}{}{}{}", kKimiCall, name, index, kKimiArguments, plain, kKimiCallEnd);
    default:
      break;
  }
  if (const XmlCallFormat* xml = format_in(kXmlCallFormats, format)) return xml_text(*xml, name, arguments);
  return fmt::format("<tool_call>\n{}\n</tool_call>", object_text(name, arguments, "arguments"));
}

}  // namespace

CallsShape calls_shape(ToolFormat format) {
  switch (format) {
    case ToolFormat::kMistral:
      return {"[TOOL_CALLS][", ", ", "]"};
    case ToolFormat::kGranite:
      return {"<|tool_call|>[", ", ", "]"};
    case ToolFormat::kJamba:
      return {"<tool_calls>[", ", ", "]</tool_calls>"};
    case ToolFormat::kNemotron:
      return {"<TOOLCALL>[", ", ", "]</TOOLCALL>"};
    case ToolFormat::kPhi4Mini:
      return {"functools[", ", ", "]"};
    case ToolFormat::kLfm2:
      return {"<|tool_call_start|>[", ", ", "]<|tool_call_end|>"};
    case ToolFormat::kOlmo3:
      return {"<function_calls>", "\n", "</function_calls>"};
    case ToolFormat::kPythonic:
      return {"[", ", ", "]"};
    case ToolFormat::kLlama4Pythonic:
      return {"<|python_start|>[", ", ", "]<|python_end|>"};
    case ToolFormat::kLlama3Json:
      return {"", "; ", ""};
    case ToolFormat::kDeepseekV3:
      return {"<｜tool▁calls▁begin｜>", "\n", "<｜tool▁calls▁end｜>"};
    case ToolFormat::kDeepseekV31:
      return {"<｜tool▁calls▁begin｜>", "", "<｜tool▁calls▁end｜>"};
    case ToolFormat::kKimiK2:
      return {"<|tool_calls_section_begin|>", "", "<|tool_calls_section_end|>"};
    case ToolFormat::kGemma4:
      return {"", "", ""};
    default:
      return {"", "\n", ""};
  }
}

std::string calls_text(ToolFormat format,
                       const std::vector<std::pair<std::string, json::object>>& names_and_arguments) {
  const CallsShape shape = calls_shape(format);
  std::string out(shape.begin);
  size_t index = 0;
  for (const auto& [name, arguments] : names_and_arguments) {
    if (index > 0) out += shape.separator;
    out += call_text(format, index++, name, arguments);
  }
  return out + std::string(shape.end);
}

ReasoningFormat reasoning_format_of(std::string_view chat_template) {
  if (has(chat_template, "<|channel|>")) return ReasoningFormat::kGptOss;
  for (const ReasoningMarks& marks : kReasoningMarks) {
    if (has(chat_template, marks.end)) return marks.format;
  }
  return ReasoningFormat::kNone;
}

}  // namespace quire::grammar
