// The bodies of /v1/chat/completions, /v1/completions, /tokenize and /detokenize as typed requests. Fields, defaults
// and names are OpenAI's and vLLM's. Unknown fields are ignored; a known one that would change the answer and is not
// built is refused by name.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "grammar/answer_reading.h"
#include "server/kv_transfer_params.h"
#include "server/sampling_fields.h"
#include "types/ids.h"
#include "types/sampling_params.h"

namespace quire::server {

// What both kinds of generation have.
struct GenerationOptions {
  std::string model;  // as asked for; may be empty
  std::string request_id;
  SamplingParams params;  // max_tokens unset where the request did not say and the endpoint has no default
  std::string structured_field = "structured_outputs";  // the field that said the answer's constraint, for errors
  // The field that set max_tokens: "max_tokens" or "max_completion_tokens".
  std::string max_tokens_field = "max_tokens";
  int32_t priority = 0;    // lower goes first
  std::string cache_salt;  // empty: none
  KvTransferParams kv_transfer;
  std::string prediction;  // OpenAI's: the answer that is expected; empty: none
  bool speculates = true;  // false: no token is guessed ahead
  bool names_service_tier = false;
  std::optional<std::chrono::milliseconds> timeout;
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage_stats = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;
  bool echo = false;
};

struct ChatRequest {
  GenerationOptions options;
  boost::json::array messages;
  boost::json::object template_variables;        // chat_template_kwargs, tools, documents
  boost::json::array tools;                      // as they came, for the template
  std::vector<grammar::ToolFunction> functions;  // those that may be called
  grammar::ToolChoice tool_choice = grammar::ToolChoice::kNone;
  bool parallel_tool_calls = true;
  bool include_reasoning = true;  // the reasoning is told; else it is left out
  std::optional<int32_t> thinking_token_budget;
  std::string chat_template;  // of the request; empty: the model's
  bool add_generation_prompt = true;
  bool continue_final_message = false;
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
  GenerationOptions options;
  std::vector<Prompt> prompts;
  std::string suffix;  // what comes behind the answer, which fills the middle; empty: nothing
  bool add_special_tokens = true;
  // echo with max_tokens 0: the prompt is scored and nothing is generated.
  bool score_only = false;
  bool prompt_logprobs_asked = false;  // by their own name, not by echo
};

struct TokenizeRequest {
  std::string model;
  std::optional<std::string> prompt;  // else `chat`
  ChatRequest chat;
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};

// Errors: invalid_argument with param(). Ranges of the sampling parameters are the engine's to check.
Result<ChatRequest> parse_chat_request(const boost::json::object& body, const SchemaLimits& limits);
Result<CompletionRequest> parse_completion_request(const boost::json::object& body, const SchemaLimits& limits);
Result<TokenizeRequest> parse_tokenize_request(const boost::json::object& body, const SchemaLimits& limits);
Result<DetokenizeRequest> parse_detokenize_request(const boost::json::object& body, const SchemaLimits& limits);

// Whether a template's variable is not for clients to set.
bool is_reserved_variable(std::string_view name);

}  // namespace quire::server
