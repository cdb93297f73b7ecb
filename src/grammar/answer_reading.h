// How the text of an answer is read: what of it is reasoning, what are calls of tools, and what is said. One table of
// formats says what models write; the grammar that constrains a call and the parser that reads it are made from it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "grammar/check.h"
#include "types/structured_output.h"

namespace quire::grammar {

// The names are those of vLLM's --tool-call-parser.
enum class ToolFormat : uint8_t {
  kNone,
  kHermes,          // <tool_call>{"name": ..., "arguments": {...}}</tool_call>
  kLlama3Json,      // {"name": ..., "parameters": {...}}, the whole answer
  kMistral,         // [TOOL_CALLS][{"name": ..., "arguments": {...}}], or [TOOL_CALLS]name[ARGS]{...}
  kQwen3Coder,      // <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
  kPythonic,        // [name(key=value), ...], the whole answer
  kLlama4Pythonic,  // the same between <|python_start|> and <|python_end|>, or bare
  kDeepseekV3,      // a section of <｜tool▁call▁begin｜>function<｜tool▁sep｜>name and a block of JSON
  kDeepseekV31,     // a section of <｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}
  kGlm,             // <tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value></tool_call>
  kGranite,         // <|tool_call|>[{"name": ..., "arguments": {...}}]
  kKimiK2,          // a section of <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{...}
  kMinimaxM2,       // <minimax:tool_call><invoke name="name"><parameter name="key">value</parameter></invoke>
  kInternlm,        // <|action_start|><|plugin|>{"name": ..., "parameters": {...}}<|action_end|>
  kJamba,           // <tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>; Hunyuan's too
  kPhi4Mini,        // functools[{"name": ..., "arguments": {...}}]
  kStep3,           // <｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="name">... in a section
  kGptOss,          // channels: commentary to=functions.name
  kGemma4,          // <|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>
  kNemotron,        // <TOOLCALL>[{"name": ..., "arguments": {...}}]</TOOLCALL>
  kSeedOss,         // <seed:tool_call><function=name><parameter=key>value</parameter></function></seed:tool_call>
  kLfm2,            // <|tool_call_start|>[name(key=value), ...]<|tool_call_end|>
  kOlmo3,           // <function_calls>name(key=value)</function_calls>, a line each
};

// The names are those of vLLM's --reasoning-parser.
enum class ReasoningFormat : uint8_t {
  kNone,
  kThink,    // <think>...</think>: deepseek_r1, qwen3, glm45, minimax_m2, olmo3
  kGranite,  // Here is my thought process: ... Here is my response:
  kMistral,  // [THINK]...[/THINK]
  kGptOss,   // the channel analysis
  kGemma4,   // <|channel>thought ... <channel|>
  kSeedOss,  // <seed:think>...</seed:think>
};

// Errors: invalid_argument listing the names there are.
Result<ToolFormat> tool_format(std::string_view name);
Result<ReasoningFormat> reasoning_format(std::string_view name);
std::string_view to_string(ToolFormat format);
std::string_view to_string(ReasoningFormat format);

// What a chat template shows of the model's ways. kHermes where it knows nothing of tools.
ToolFormat tool_format_of(std::string_view chat_template);
ReasoningFormat reasoning_format_of(std::string_view chat_template);
bool knows_tools(std::string_view chat_template);
// Whether a prompt's end is the beginning of a reasoning that the model is to go on with.
bool ends_in_reasoning(ReasoningFormat format, std::string_view prompt);

// What such calls look like in an answer of the format, which its parser reads: for models whose template does not say.
// As kHermes where calls are messages of their own (kGptOss), or there are none.
std::string calls_text(ToolFormat format,
                       const std::vector<std::pair<std::string, boost::json::object>>& names_and_arguments);

// Whether a special token of this spelling is part of how some format is written; others are never text.
bool is_mark(std::string_view spelling);

struct ToolFunction {
  std::string name;
  boost::json::value parameters;  // JSON schema of an object
  bool strict = false;            // its schema must be heeded to the letter, or the request refused
};

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

// Immutable once an answer is read by it.
struct AnswerReading {
  ToolFormat tools = ToolFormat::kNone;
  ToolChoice choice = ToolChoice::kNone;
  std::vector<ToolFunction> functions;  // kNamed: the one
  bool parallel = true;                 // more than one call an answer
  bool mistral_args = true;             // kMistral: the template has [ARGS]

  ReasoningFormat reasoning = ReasoningFormat::kNone;
  bool begun = false;                       // the prompt ends within the reasoning
  std::optional<int32_t> reasoning_budget;  // tokens, at most

  bool reads_tools() const { return tools != ToolFormat::kNone && choice != ToolChoice::kNone; }
  bool plain() const { return !reads_tools() && reasoning == ReasoningFormat::kNone; }
};

// What a request for an answer that is read so must be constrained to, together with the output of what is said (an
// answer with one has no calls). nullopt: nothing. Errors: invalid_argument: a strict function's schema; a output that
// cannot follow reasoning; a format that cannot be forced.
Result<std::optional<StructuredOutput>> constraint_of(const AnswerReading& reading,
                                                      const std::optional<StructuredOutput>& output,
                                                      const GrammarLimits& limits);

// A piece of a call. A call's first piece has its id and name; the pieces' arguments put together are JSON.
struct ToolCallPiece {
  int32_t index = 0;  // of the call in the answer
  std::string id;
  std::string name;
  std::string arguments;
};

struct AnswerPiece {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallPiece> calls;
};

// Reads one answer as it comes, special tokens spelled out. All pieces put together do not depend on how the text was
// cut. Time is linear in the text.
class AnswerParser {
 public:
  virtual ~AnswerParser() = default;
  // Appends to `out` what has become certain.
  virtual void push(std::string_view text, AnswerPiece& out) = 0;
  virtual void finish(AnswerPiece& out) = 0;
  // Whether what comes next is reasoning, for all that is known.
  virtual bool in_reasoning() const { return false; }
  // Whether the end of what has come may be the beginning of the mark behind it.
  virtual bool holds_mark() const { return false; }
};

// `reading` must outlive it.
std::unique_ptr<AnswerParser> make_answer_parser(const AnswerReading& reading);

}  // namespace quire::grammar
