// The generating endpoints and those about tokens: from a request's body to completions of the engine. Everything here
// may take long (templates, tokenizing) and runs on worker threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "engine/chat.h"
#include "engine/engine.h"
#include "server/api_error.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/load.h"
#include "server/openai_schema.h"
#include "server/server.h"

namespace quire::server {

class OpenAiApi {
 public:
  // Both must outlive it.
  OpenAiApi(const ServerConfig& config, engine::Engine& engine);

  // Each answers the exchange: now, or by a Generation that lives on with it. Any thread.
  void chat_completions(const std::shared_ptr<Exchange>& exchange) const;
  void completions(const std::shared_ptr<Exchange>& exchange) const;
  void tokenize(const std::shared_ptr<Exchange>& exchange) const;
  void detokenize(const std::shared_ptr<Exchange>& exchange) const;

  boost::json::object model_list() const;
  // A sensible Retry-After, in seconds.
  int retry_after() const;
  // Errors: not_found.
  Result<boost::json::object> model_card(std::string_view name) const;

 private:
  Status check_model(const std::string& name) const;
  Result<PreparedPrompt> render(const ChatRequest& request) const;
  Result<PreparedPrompt> encode(const Prompt& prompt, const CompletionRequest& request) const;
  Status check_length(const PreparedPrompt& prompt, const GenerationOptions& options, bool score_only) const;
  Status check_text_length(size_t bytes) const;
  Status check_size(const GenerationOptions& options, size_t num_prompts) const;
  void truncate(const GenerationOptions& options, PreparedPrompt& prompt) const;
  ApiError told(const Status& status) const;
  void answer(const std::shared_ptr<Exchange>& exchange, const Status& status) const;
  Status start(std::shared_ptr<Exchange> exchange, const GenerationOptions& options, AnswerContext context,
               std::vector<PreparedPrompt> prompts) const;
  AnswerContext context_of(const Exchange& exchange, const GenerationOptions& options, bool chat) const;
  boost::json::object card(const std::string& name) const;

  Status answer_chat(const std::shared_ptr<Exchange>& exchange) const;
  Status answer_completions(const std::shared_ptr<Exchange>& exchange) const;
  Status answer_tokenize(const std::shared_ptr<Exchange>& exchange) const;
  Status answer_detokenize(const std::shared_ptr<Exchange>& exchange) const;

  const ServerConfig& config_;
  engine::Engine& engine_;
  const SchemaLimits limits_;
  const int64_t started_;             // Unix seconds
  size_t max_bytes_per_token_ = 0;    // of the vocabulary; 0: unknown
  const std::shared_ptr<Load> load_;  // answers under way
};

}  // namespace quire::server
