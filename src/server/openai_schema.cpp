#include "server/openai_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/refused_fields.h"
#include "server/sampling_fields.h"
#include "server/structured_fields.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr int64_t kLargestInt32 = std::numeric_limits<int32_t>::max();

// ------------------------------------------------------------------------------------------------------------------
// refused fields

bool is_text_only(const json::value& v) {
  if (v.is_null()) return true;
  const auto* list = v.if_array();
  return list != nullptr && std::all_of(list->begin(), list->end(), [](const json::value& item) {
           return item.is_string() && item.get_string() == "text";
         });
}

constexpr const char* kTextOnly = "this server answers with text only";

constexpr RefusedField kRefusedFields[] = {
    {"functions", is_falsy, "it was replaced by tools"},
    {"function_call", is_falsy, "it was replaced by tool_choice"},
    {"audio", is_falsy, kTextOnly},
    {"modalities", is_text_only, kTextOnly},
    {"mm_processor_kwargs", is_falsy, kTextOnly},
    {"media_io_kwargs", is_falsy, kTextOnly},
    {"prompt_embeds", is_falsy, "prompts are text or token ids"},
    {"web_search_options", is_falsy, "this server does not search the web"},
    {"logits_processors", is_falsy, "code from a request is never run"},
    {"logprob_token_ids", is_falsy, "it is not built yet"},
    {"guided_whitespace_pattern", is_null, "white space is JSON's"},
    {"truncation_side", is_null, "it is not built yet"},
    {"watermarking", is_falsy, "it is not built yet"},
    {"return_prompt_text", is_falsy, "it is not built yet"},
    {"return_token_offsets", is_falsy, "it is not built yet"},
};

constexpr RefusedField kRefusedInChats[] = {
    {"suffix", is_falsy, "it belongs to completions"},
};

// ------------------------------------------------------------------------------------------------------------------
// common to generations

void read_stream(JsonFields& fields, GenerationOptions& options) {
  options.stream = fields.boolean("stream").value_or(false);
  if (const json::object* object = fields.object("stream_options")) {
    if (!options.stream)
      return fields.fail("stream_options", "stream_options is only for requests with stream set to true.");
    JsonFields inner(*object, "stream_options.");
    options.include_usage = inner.boolean("include_usage").value_or(false);
    options.continuous_usage_stats = inner.boolean("continuous_usage_stats").value_or(false);
    if (!inner.status().ok()) fields.fail("stream_options", inner.status().message());
  }
  if (!options.stream) return;
  const SamplingParams& params = options.params;
  if (params.prompt_logprobs) {
    fields.fail("prompt_logprobs", "prompt_logprobs is not available when stream is true.");
  }
  if (!params.use_beam_search && params.best_of.value_or(params.n) != params.n) {
    fields.fail("best_of", fmt::format("best_of ({}) must be n ({}) when stream is true: which answers are the best is "
                                       "known at the end only.",
                                       *params.best_of, params.n));
  }
}

// When it is served, and beside whom.
void read_scheduling(JsonFields& fields, GenerationOptions& options) {
  options.priority = static_cast<int32_t>(fields.integer("priority", -kLargestInt32, kLargestInt32).value_or(0));
  if (auto salt = fields.string("cache_salt")) {
    constexpr size_t kMostBytes = 1024;
    if (salt->empty() || salt->size() > kMostBytes) {
      fields.fail("cache_salt",
                  fmt::format("cache_salt must be a string of 1 to {} bytes, got {} bytes.", kMostBytes, salt->size()));
    }
    options.cache_salt = std::move(*salt);
  }
  // OpenAI's. Answers say in which they were served, whichever was asked for: here there is one.
  if (const auto tier = fields.string("service_tier")) {
    constexpr std::array<std::string_view, 5> kTiers = {"auto", "default", "flex", "scale", "priority"};
    if (std::ranges::find(kTiers, *tier) == kTiers.end()) {
      fields.fail("service_tier", fmt::format("service_tier must be auto, default, flex, scale or priority, got {}.",
                                              in_quotes(*tier, 40)));
    }
    options.names_service_tier = true;
  }
  if (const auto seconds = fields.number("timeout")) {
    if (*seconds <= 0) fields.fail("timeout", fmt::format("timeout must be more than 0 seconds, got {}.", *seconds));
    constexpr float kLongest = 1e8F;  // three years
    options.timeout = std::chrono::milliseconds(
        static_cast<int64_t>(std::ceil(1000 * static_cast<double>(std::min(*seconds, kLongest)))));
  }
}

// OpenAI's {"type": "content", "content": "..." or [{"type": "text", "text": "..."}, ...]}.
void read_prediction(JsonFields& fields, GenerationOptions& options) {
  options.speculates = fields.boolean("speculation").value_or(true);
  const json::object* object = fields.object("prediction");
  if (object == nullptr) return;
  constexpr const char* kShape =
      "prediction must be {\"type\": \"content\", \"content\": ...} with a string or a list of {\"type\": \"text\", "
      "\"text\": ...}.";
  const auto is = [](const json::object& o, const char* name, std::string_view value) {
    const json::value* member = o.if_contains(name);
    return member != nullptr && member->is_string() && std::string_view(member->get_string()) == value;
  };
  const json::value* content = object->if_contains("content");
  if (!is(*object, "type", "content") || content == nullptr) return fields.fail("prediction", kShape);
  if (content->is_string()) {
    options.prediction = content->get_string();
  } else if (const json::array* parts = content->if_array()) {
    for (const json::value& part : *parts) {
      const json::object* one = part.if_object();
      const json::value* text = one == nullptr ? nullptr : one->if_contains("text");
      if (text == nullptr || !text->is_string() || !is(*one, "type", "text")) return fields.fail("prediction", kShape);
      options.prediction += text->get_string();
    }
  } else {
    return fields.fail("prediction", kShape);
  }
  if (options.params.use_beam_search && !options.prediction.empty()) {
    fields.fail("prediction", "prediction is not available with use_beam_search: beams are not guessed ahead.");
  }
}

void read_common(JsonFields& fields, const SchemaLimits& limits, GenerationOptions& options) {
  options.model = fields.string("model").value_or("");
  options.request_id = fields.string("request_id").value_or("");
  const bool plain = std::all_of(options.request_id.begin(), options.request_id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == ':';
  });
  if (!plain || options.request_id.size() > 128) {
    fields.fail("request_id", "request_id must be at most 128 letters, digits and any of \"-_.:\".");
  }
  read_sampling(fields, limits, options.params);
  read_structured_output(fields, options.params.structured_output, options.structured_field);
  read_stream(fields, options);
  read_scheduling(fields, options);
  options.kv_transfer = read_kv_transfer_params(fields, limits.kv_transfer, limits.max_transfer_blocks);
  read_prediction(fields, options);
  options.echo = fields.boolean("echo").value_or(false);
  options.return_token_ids = fields.boolean("return_token_ids").value_or(limits.return_token_ids);
  options.return_tokens_as_token_ids =
      fields.boolean("return_tokens_as_token_ids").value_or(limits.return_tokens_as_token_ids);
}

void read_max_tokens(JsonFields& fields, std::string_view name, GenerationOptions& options) {
  if (const auto most = fields.integer(name, 0, kLargestInt32)) {
    options.params.max_tokens = static_cast<int32_t>(*most);
    options.max_tokens_field = name;
  }
}

// ------------------------------------------------------------------------------------------------------------------
// chat

// What is in the messages is engine::render_chat's to check.
void read_messages(JsonFields& fields, ChatRequest& request) {
  const json::array* messages = fields.array("messages");
  if (messages == nullptr)
    return fields.fail("messages", "messages is required: a list of objects with role and content.");
  request.messages = *messages;
}

// One of `tools`: {"type": "function", "function": {"name", "description", "parameters", "strict"}}.
std::optional<grammar::ToolFunction> read_tool(JsonFields& fields, const json::value& tool, size_t index) {
  const auto wrong = [&](std::string_view what) {
    fields.fail("tools", fmt::format("tools[{}] {}", index, what));
    return std::nullopt;
  };
  const auto* object = tool.if_object();
  const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
  const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
  if (type == nullptr || *type != "function" || function == nullptr || !function->is_object()) {
    return wrong("must be {\"type\": \"function\", \"function\": {...}}.");
  }
  const json::object& inner = function->get_object();
  const json::value* name = inner.if_contains("name");
  if (name == nullptr || !name->is_string()) return wrong("has a function without a name.");
  grammar::ToolFunction out;
  out.name = name->get_string();
  const bool plain = !out.name.empty() && out.name.size() <= 128 && std::ranges::all_of(out.name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
  if (!plain) return wrong("has a function whose name is not 1 to 128 letters, digits and any of \"_-.\".");
  const json::value* parameters = inner.if_contains("parameters");
  if (parameters == nullptr || parameters->is_null()) {
    out.parameters = {{"type", "object"}, {"properties", json::object()}};
  } else if (parameters->is_object()) {
    out.parameters = *parameters;
  } else {
    return wrong("has a function whose parameters are no JSON schema.");
  }
  const json::value* strict = inner.if_contains("strict");
  if (strict != nullptr && !strict->is_null() && !strict->is_bool()) {
    return wrong("has a function whose strict is no boolean.");
  }
  out.strict = strict != nullptr && strict->is_bool() && strict->get_bool();
  return out;
}

// "none", "auto", "required" or {"type": "function", "function": {"name": ...}}.
void read_tool_choice(JsonFields& fields, const json::value* choice, ChatRequest& request) {
  using grammar::ToolChoice;
  request.tool_choice = ToolChoice::kAuto;
  if (choice == nullptr || choice->is_null()) return;
  constexpr const char* kShape =
      "tool_choice must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": "
      "...}}.";
  if (choice->is_string()) {
    const std::string_view word = choice->get_string();
    if (word == "none") {
      request.tool_choice = ToolChoice::kNone;
    } else if (word == "required") {
      request.tool_choice = ToolChoice::kRequired;
    } else if (word != "auto") {
      fields.fail("tool_choice", kShape);
    }
    return;
  }
  const auto* object = choice->if_object();
  const json::value* function = object == nullptr ? nullptr : object->if_contains("function");
  const auto* inner = function == nullptr ? nullptr : function->if_object();
  const json::value* name = inner == nullptr ? nullptr : inner->if_contains("name");
  if (name == nullptr || !name->is_string()) return fields.fail("tool_choice", kShape);
  std::erase_if(request.functions, [&](const grammar::ToolFunction& one) { return one.name != name->get_string(); });
  request.tool_choice = ToolChoice::kNamed;
  if (request.functions.empty()) {
    fields.fail("tool_choice",
                fmt::format("tool_choice names {}, which is not among the tools.", in_quotes(name->get_string(), 60)));
  }
}

void read_tools(JsonFields& fields, ChatRequest& request) {
  const json::array* tools = fields.array("tools");
  const json::value* choice = fields.any("tool_choice");
  if (tools == nullptr) {
    const bool none = choice == nullptr || choice->is_null() || *choice == "none";
    if (!none) fields.fail("tool_choice", "tool_choice needs tools.");
    return;
  }
  constexpr size_t kMostTools = 512;
  if (tools->empty()) return fields.fail("tools", "tools must not be an empty list. Leave it out.");
  if (tools->size() > kMostTools) {
    return fields.fail("tools", fmt::format("tools has {} entries; at most {} are taken.", tools->size(), kMostTools));
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    auto function = read_tool(fields, (*tools)[i], i);
    if (!function) return;
    for (const grammar::ToolFunction& other : request.functions) {
      if (other.name == function->name) {
        return fields.fail("tools", fmt::format("tools has two functions named {}.", in_quotes(function->name, 60)));
      }
    }
    request.functions.push_back(std::move(*function));
  }
  request.tools = *tools;
  read_tool_choice(fields, choice, request);
  request.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  const bool must =
      request.tool_choice != grammar::ToolChoice::kNone && request.tool_choice != grammar::ToolChoice::kAuto;
  if (must && request.options.params.structured_output) {
    fields.fail("tool_choice", fmt::format("tool_choice asks for a call and {} for structured output; one is taken.",
                                           request.options.structured_field));
  }
}

void read_reasoning(JsonFields& fields, ChatRequest& request) {
  request.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  if (const auto budget = fields.integer("thinking_token_budget", 0, kLargestInt32)) {
    request.thinking_token_budget = static_cast<int32_t>(*budget);
  }
}

}  // namespace

bool is_reserved_variable(std::string_view name) {
  return name == "chat_template" || name == "tokenize";
}

namespace {

void read_template(JsonFields& fields, const SchemaLimits& limits, ChatRequest& request) {
  request.chat_template = fields.string("chat_template").value_or("");
  if (!request.chat_template.empty() && !limits.trust_request_chat_template) {
    fields.fail("chat_template",
                "A chat_template in a request is not accepted here (--trust-request-chat-template allows it).");
  }
  if (const json::object* variables = fields.object("chat_template_kwargs")) {
    for (const auto& [name, value] : *variables) {
      if (is_reserved_variable(name)) {
        return fields.fail("chat_template_kwargs",
                           fmt::format("chat_template_kwargs must not hold {}.", in_quotes(name, 40)));
      }
      request.template_variables[name] = value;
    }
  }
  if (const json::array* documents = fields.array("documents")) request.template_variables["documents"] = *documents;
  if (const auto effort = fields.string("reasoning_effort")) request.template_variables["reasoning_effort"] = *effort;
  request.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  const auto add = fields.boolean("add_generation_prompt");
  if (request.continue_final_message && add.value_or(false)) {
    fields.fail("continue_final_message", "continue_final_message and add_generation_prompt must not both be true.");
  }
  request.add_generation_prompt = add.value_or(!request.continue_final_message);
}

// --------------------------------------------------------------------------------------------------------------
// prompts

void read_prompt(JsonFields& fields, const SchemaLimits& limits, CompletionRequest& request) {
  constexpr const char* kShape =
      "prompt must be a string, a list of strings, a list of token ids or a list of such lists";
  const json::value* prompt = fields.any("prompt");
  if (prompt == nullptr || prompt->is_null())
    return fields.fail("prompt", fmt::format("prompt is required: {}.", kShape));
  if (prompt->is_string()) {
    request.prompts.emplace_back(std::string(std::string_view(prompt->get_string())));
    return;
  }
  const auto* list = prompt->if_array();
  if (list == nullptr) return fields.fail("prompt", fmt::format("{}; got {}.", kShape, describe(*prompt)));
  if (list->empty()) return fields.fail("prompt", "prompt must not be an empty list.");
  const json::kind kind = list->front().kind();
  if (kind != json::kind::string && kind != json::kind::array) {
    std::vector<TokenId> ids;
    read_token_ids(fields, "prompt", *list, ids);
    request.prompts.emplace_back(std::move(ids));
    return;
  }
  if (static_cast<int64_t>(list->size()) > limits.max_prompts) {
    return fields.fail("prompt", fmt::format("prompt is a list of {} prompts; at most {} are taken.", list->size(),
                                             limits.max_prompts));
  }
  for (const json::value& item : *list) {
    if (item.kind() != kind) return fields.fail("prompt", fmt::format("{}; its items are of different kinds.", kShape));
    if (item.is_string()) {
      request.prompts.emplace_back(std::string(std::string_view(item.get_string())));
    } else {
      std::vector<TokenId> ids;
      read_token_ids(fields, "prompt", item.get_array(), ids);
      request.prompts.emplace_back(std::move(ids));
    }
  }
}

void check_prompts_not_empty(JsonFields& fields, const CompletionRequest& request) {
  for (const Prompt& prompt : request.prompts) {
    if (std::visit([](const auto& p) { return p.empty(); }, prompt))
      return fields.fail("prompt", "prompt must not be empty.");
  }
}

}  // namespace

Result<ChatRequest> parse_chat_request(const json::object& body, const SchemaLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedFields));
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedInChats));
  ChatRequest request;
  GenerationOptions& options = request.options;
  options.params.max_tokens = std::nullopt;
  JsonFields fields(body);
  read_common(fields, limits, options);
  read_max_tokens(fields, "max_tokens", options);
  read_max_tokens(fields, "max_completion_tokens", options);
  if (options.params.max_tokens == 0) {
    fields.fail(options.max_tokens_field, fmt::format("{} must be at least 1, got 0.", options.max_tokens_field));
  }
  const bool logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", -1, kLargestInt32);
  if (top.value_or(0) != 0 && !logprobs) fields.fail("top_logprobs", "top_logprobs needs logprobs set to true.");
  if (logprobs) options.params.logprobs = static_cast<int32_t>(top.value_or(0));
  if (fields.boolean("add_special_tokens").value_or(false)) {
    fields.fail("add_special_tokens",
                "add_special_tokens is not supported for chats: the model's template places them.");
  }
  read_messages(fields, request);
  read_tools(fields, request);
  read_reasoning(fields, request);
  read_template(fields, limits, request);
  QUIRE_RETURN_IF_ERROR(fields.status());
  return request;
}

Result<CompletionRequest> parse_completion_request(const json::object& body, const SchemaLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_refused(body, kRefusedFields));
  CompletionRequest request;
  GenerationOptions& options = request.options;
  JsonFields fields(body);
  read_common(fields, limits, options);
  read_max_tokens(fields, "max_tokens", options);
  if (const auto count = fields.integer("logprobs", -1, kLargestInt32))
    options.params.logprobs = static_cast<int32_t>(*count);
  request.score_only = options.params.max_tokens == 0 && (options.echo || options.params.prompt_logprobs);
  if (options.params.max_tokens == 0 && !request.score_only) {
    fields.fail("max_tokens", "max_tokens must be at least 1, got 0 (0 with echo scores the prompt).");
  }
  request.prompt_logprobs_asked = options.params.prompt_logprobs.has_value();
  // What echo shows of the prompt has logprobs too.
  if (options.echo && options.params.logprobs && !options.params.prompt_logprobs) {
    options.params.prompt_logprobs = options.params.logprobs;
  }
  request.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  request.suffix = fields.string("suffix").value_or("");
  if (!request.suffix.empty() && options.echo) {
    fields.fail("suffix", "suffix and echo exclude each other: the prompt is no beginning of the answer.");
  }
  read_prompt(fields, limits, request);
  check_prompts_not_empty(fields, request);
  QUIRE_RETURN_IF_ERROR(fields.status());
  return request;
}

Result<TokenizeRequest> parse_tokenize_request(const json::object& body, const SchemaLimits& limits) {
  TokenizeRequest request;
  JsonFields fields(body);
  request.model = fields.string("model").value_or("");
  request.prompt = fields.string("prompt");
  request.return_token_strs = fields.boolean("return_token_strs").value_or(false);
  if (!request.prompt) {
    if (fields.any("messages") == nullptr) fields.fail("prompt", "prompt (a string) or messages is required.");
    read_messages(fields, request.chat);
    if (const json::array* tools = fields.array("tools")) request.chat.tools = *tools;
    read_template(fields, limits, request.chat);
    if (fields.boolean("add_special_tokens").value_or(false)) {
      fields.fail("add_special_tokens",
                  "add_special_tokens is not supported for chats: the model's template places them.");
    }
  } else {
    request.add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  }
  QUIRE_RETURN_IF_ERROR(fields.status());
  return request;
}

Result<DetokenizeRequest> parse_detokenize_request(const json::object& body, const SchemaLimits& limits) {
  DetokenizeRequest request;
  JsonFields fields(body);
  request.model = fields.string("model").value_or("");
  const json::array* tokens = fields.array("tokens");
  if (tokens == nullptr) {
    fields.fail("tokens", "tokens is required: a list of token ids.");
  } else if (static_cast<int64_t>(tokens->size()) > limits.max_detokenized) {
    fields.fail("tokens", fmt::format("tokens is a list of {} token ids; at most {} are taken at once.", tokens->size(),
                                      limits.max_detokenized));
  } else {
    read_token_ids(fields, "tokens", *tokens, request.tokens);
  }
  QUIRE_RETURN_IF_ERROR(fields.status());
  return request;
}

}  // namespace quire::server
