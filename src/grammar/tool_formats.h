// The marks of the formats, as data for grammar and parser. Private to grammar/.
#pragma once

#include <array>
#include <string_view>

#include "grammar/answer_reading.h"

namespace quire::grammar {

// Calls whose arguments are JSON.
struct JsonCallFormat {
  ToolFormat format;
  std::string_view open;   // what calls begin behind; empty: the answer's beginning
  std::string_view close;  // what they end before; empty: the answer's end
};

constexpr std::array<JsonCallFormat, 11> kJsonCallFormats = {{
    {ToolFormat::kHermes, "<tool_call>", "</tool_call>"},
    {ToolFormat::kLlama3Json, "", ""},
    {ToolFormat::kMistral, "[TOOL_CALLS]", ""},
    {ToolFormat::kDeepseekV3, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
    {ToolFormat::kDeepseekV31, "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
    {ToolFormat::kGranite, "<|tool_call|>", ""},
    {ToolFormat::kInternlm, "<|action_start|><|plugin|>", "<|action_end|>"},
    {ToolFormat::kJamba, "<tool_calls>", "</tool_calls>"},
    {ToolFormat::kNemotron, "<TOOLCALL>", "</TOOLCALL>"},
    {ToolFormat::kPhi4Mini, "functools[", ""},
    {ToolFormat::kKimiK2, "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"},
}};

inline constexpr std::string_view kPythonTag = "<|python_tag|>";  // may stand before llama3_json's calls

// Around gemma4's calls, and around the texts in them.
inline constexpr std::string_view kGemmaCall = "<|tool_call>";
inline constexpr std::string_view kGemmaCallEnd = "<tool_call|>";
inline constexpr std::string_view kGemmaQuote = "<|\"|>";

// Around calls of llama4_pythonic.
inline constexpr std::string_view kPythonStart = "<|python_start|>";
inline constexpr std::string_view kPythonEnd = "<|python_end|>";

inline constexpr std::string_view kDeepseekCall = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kDeepseekSeparator = "<｜tool▁sep｜>";
inline constexpr std::string_view kDeepseekCallEnd = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kKimiCall = "<|tool_call_begin|>";
inline constexpr std::string_view kKimiArguments = "<|tool_call_argument_begin|>";
inline constexpr std::string_view kKimiCallEnd = "<|tool_call_end|>";

// Calls as Python writes them, between marks.
struct PythonCallFormat {
  ToolFormat format;
  std::string_view open;
  std::string_view close;
  bool listed;  // in brackets, with commas between them; else a line each
};

constexpr std::array<PythonCallFormat, 2> kPythonCallFormats = {{
    {ToolFormat::kLfm2, "<|tool_call_start|>", "<|tool_call_end|>", true},
    {ToolFormat::kOlmo3, "<function_calls>", "</function_calls>", false},
}};

// Calls whose arguments are elements, a parameter each.
struct XmlCallFormat {
  ToolFormat format;
  std::string_view open;
  std::string_view close;
  std::string_view call;  // in front of the function's name; empty: the name follows `open`
  std::string_view call_named;
  std::string_view call_end;  // empty: `close` ends the call
  std::string_view key;       // in front of a parameter's name
  std::string_view key_end;
  std::string_view value;  // in front of its value; empty: the value follows key_end
  std::string_view value_end;
  bool line_ends;  // around values
  // What may stand around a call within the open and close marks.
  std::string_view before_call = "";
  std::string_view after_call = "";
};

inline constexpr std::string_view kStepCall = "<｜tool_call_begin｜>";
inline constexpr std::string_view kStepSeparator = "<｜tool_sep｜>";
inline constexpr std::string_view kStepCallEnd = "<｜tool_call_end｜>";

constexpr std::array<XmlCallFormat, 5> kXmlCallFormats = {{
    {ToolFormat::kQwen3Coder, "<tool_call>", "</tool_call>", "<function=", ">", "</function>", "<parameter=", ">", "",
     "</parameter>", true},
    {ToolFormat::kSeedOss, "<seed:tool_call>", "</seed:tool_call>", "<function=", ">", "</function>",
     "<parameter=", ">", "", "</parameter>", false},
    {ToolFormat::kGlm, "<tool_call>", "</tool_call>", "", "", "", "<arg_key>", "</arg_key>", "<arg_value>",
     "</arg_value>", false},
    {ToolFormat::kMinimaxM2, "<minimax:tool_call>", "</minimax:tool_call>", "<invoke name=\"", "\">", "</invoke>",
     "<parameter name=\"", "\">", "", "</parameter>", false},
    {ToolFormat::kStep3, "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<steptml:invoke name=\"", "\">",
     "</steptml:invoke>", "<steptml:parameter name=\"", "\">", "", "</steptml:parameter>", false,
     "<｜tool_call_begin｜>function<｜tool_sep｜>", "<｜tool_call_end｜>"},
}};

// What stands around all calls of an answer, and between two of them; empty where each call stands by itself.
struct CallsShape {
  std::string_view begin;
  std::string_view separator;
  std::string_view end;
};

CallsShape calls_shape(ToolFormat format);

struct ReasoningMarks {
  ReasoningFormat format;
  std::string_view begin;
  std::string_view end;
};

constexpr std::array<ReasoningMarks, 5> kReasoningMarks = {{
    {ReasoningFormat::kThink, "<think>", "</think>"},
    {ReasoningFormat::kGranite, "Here is my thought process:", "Here is my response:"},
    {ReasoningFormat::kMistral, "[THINK]", "[/THINK]"},
    {ReasoningFormat::kGemma4, "<|channel>thought", "<channel|>"},
    {ReasoningFormat::kSeedOss, "<seed:think>", "</seed:think>"},
}};

template <typename Table>
const typename Table::value_type* format_in(const Table& table, decltype(Table::value_type::format) format) {
  for (const auto& row : table) {
    if (row.format == format) return &row;
  }
  return nullptr;
}

}  // namespace quire::grammar
