// What a batch's line may ask, by the path of its url.
#pragma once

#include <memory>

#include "server/http.h"
#include "server/messages_api.h"
#include "server/openai_api.h"
#include "server/responses_api.h"

namespace quire::server {

class BatchEndpoints {
 public:
  // All must outlive it.
  BatchEndpoints(const OpenAiApi& openai, ResponsesApi& responses, const MessagesApi& messages)
      : openai_(openai), responses_(responses), messages_(messages) {}

  // REQUIRES: is_batch_endpoint() of the request's path.
  void operator()(const std::shared_ptr<Exchange>& exchange) const {
    const std::string& path = exchange->request().path;
    if (path == "/v1/chat/completions") {
      openai_.chat_completions(exchange);
    } else if (path == "/v1/completions") {
      openai_.completions(exchange);
    } else if (path == "/v1/responses") {
      responses_.create(exchange);
    } else {
      messages_.create(exchange);
    }
  }

 private:
  const OpenAiApi& openai_;
  ResponsesApi& responses_;
  const MessagesApi& messages_;
};

}  // namespace quire::server
