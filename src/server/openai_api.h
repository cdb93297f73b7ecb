// OpenAI's chats and completions, the models and what is about tokens.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "server/generator.h"
#include "server/http.h"

namespace quire::server {

class OpenAiApi {
 public:
  // It must outlive this.
  explicit OpenAiApi(const Generator& generator);

  // Each answers the exchange: now, or by a Generation that lives on with it. Any thread.
  void chat_completions(const std::shared_ptr<Exchange>& exchange) const;
  void completions(const std::shared_ptr<Exchange>& exchange) const;
  void tokenize(const std::shared_ptr<Exchange>& exchange) const;
  void detokenize(const std::shared_ptr<Exchange>& exchange) const;

  boost::json::object model_list() const;
  // Errors: not_found.
  Result<boost::json::object> model_card(std::string_view name) const;

 private:
  boost::json::object card(const std::string& name) const;
  Status answer_chat(const std::shared_ptr<Exchange>& exchange) const;
  Status answer_completions(const std::shared_ptr<Exchange>& exchange) const;
  Status answer_tokenize(const std::shared_ptr<Exchange>& exchange) const;
  Status answer_detokenize(const std::shared_ptr<Exchange>& exchange) const;

  const Generator& generator_;
  const int64_t started_;  // Unix seconds
};

}  // namespace quire::server
