#include "grammar/tool_formats.h"

#include <algorithm>
#include <string>
#include <utility>

namespace quire::grammar {
namespace {

constexpr std::array<std::pair<std::string_view, ToolFormat>, 21> kToolNames = {{
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
    // Other names of the same.
    {"llama4_json", ToolFormat::kLlama3Json},
    {"qwen3_xml", ToolFormat::kQwen3Coder},
    {"llama4_pythonic", ToolFormat::kPythonic},
    {"deepseek_v31", ToolFormat::kDeepseekV3},
    {"glm", ToolFormat::kGlm},
    {"glm47", ToolFormat::kGlm},
    {"minimax", ToolFormat::kMinimaxM2},
    {"gpt-oss", ToolFormat::kGptOss},
    {"harmony", ToolFormat::kGptOss},
}};

constexpr std::array<std::pair<std::string_view, ReasoningFormat>, 12> kReasoningNames = {{
    {"none", ReasoningFormat::kNone},
    {"deepseek_r1", ReasoningFormat::kThink},
    {"granite", ReasoningFormat::kGranite},
    {"mistral", ReasoningFormat::kMistral},
    {"openai_gptoss", ReasoningFormat::kGptOss},
    // Other names of the same.
    {"qwen3", ReasoningFormat::kThink},
    {"glm45", ReasoningFormat::kThink},
    {"glm", ReasoningFormat::kThink},
    {"deepseek_v3", ReasoningFormat::kThink},
    {"minimax_m2", ReasoningFormat::kThink},
    {"kimi_k2", ReasoningFormat::kThink},
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
  constexpr std::array<std::pair<std::string_view, ToolFormat>, 11> kMarks = {{
      {"<|tool_calls_section_begin|>", ToolFormat::kKimiK2},
      {"<｜tool▁calls▁begin｜>", ToolFormat::kDeepseekV3},
      {"<minimax:tool_call>", ToolFormat::kMinimaxM2},
      {"<|channel|>", ToolFormat::kGptOss},
      {"<arg_key>", ToolFormat::kGlm},
      {"<function=", ToolFormat::kQwen3Coder},
      {"[TOOL_CALLS]", ToolFormat::kMistral},
      {"<|tool_call|>", ToolFormat::kGranite},
      {"<tool_call>", ToolFormat::kHermes},
      {"func_name1(", ToolFormat::kPythonic},
      {"\"parameters\": ", ToolFormat::kLlama3Json},
  }};
  if (!knows_tools(chat_template)) return ToolFormat::kHermes;
  for (const auto& [mark, format] : kMarks) {
    if (has(chat_template, mark)) return format;
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
  constexpr std::string_view kOthers[] = {kPythonTag,  kDeepseekCall,  kDeepseekSeparator, kDeepseekCallEnd,
                                          kKimiCall,   kKimiArguments, kKimiCallEnd,       "[ARGS]",
                                          "[CALL_ID]", "<|channel|>",  "<|message|>",      "<|start|>",
                                          "<|end|>",   "<|call|>",     "<|return|>",       "<|constrain|>"};
  const auto is = [spelling](std::string_view mark) { return mark == spelling; };
  return std::ranges::any_of(kOthers, is) ||
         std::ranges::any_of(kJsonCallFormats, [&](const auto& f) { return is(f.open) || is(f.close); }) ||
         std::ranges::any_of(kReasoningMarks, [&](const auto& f) { return is(f.begin) || is(f.end); }) ||
         std::ranges::any_of(kXmlCallFormats, [&](const auto& f) {
           return is(f.open) || is(f.close) || is(f.call_end) || is(f.key) || is(f.key_end) || is(f.value) ||
                  is(f.value_end);
         });
}

ReasoningFormat reasoning_format_of(std::string_view chat_template) {
  if (has(chat_template, "<|channel|>")) return ReasoningFormat::kGptOss;
  for (const ReasoningMarks& marks : kReasoningMarks) {
    if (has(chat_template, marks.end)) return marks.format;
  }
  return ReasoningFormat::kNone;
}

}  // namespace quire::grammar
