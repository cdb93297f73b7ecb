// OpenAI's chats and completions, the models and what is about tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "server/http.h"
#include "server/model_request.h"

namespace quire::server {

class OpenAiApi {
 public:
  // They must outlive this.
  explicit OpenAiApi(Models& models);

  // Each answers the exchange: now, or by a Generation that lives on with it. Any thread.
  void chat_completions(const std::shared_ptr<Exchange>& exchange) const;
  void completions(const std::shared_ptr<Exchange>& exchange) const;
  void tokenize(const std::shared_ptr<Exchange>& exchange) const;
  void detokenize(const std::shared_ptr<Exchange>& exchange) const;

  // What a tokenizer_config.json says, with the spelling of special tokens and the chat template in effect, of a model
  // that is loaded; query: of the request, "model=NAME" or nothing.
  HttpResponse tokenizer_info(std::string_view query) const;

  boost::json::object model_list() const;
  // Errors: not_found.
  Result<boost::json::object> model_card(std::string_view name) const;

 private:
  boost::json::object card(const Models::Listed& model) const;

  Models& models_;
  const int64_t started_;  // Unix seconds
};

}  // namespace quire::server
