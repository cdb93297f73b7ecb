// What a batch's line may ask, by the path of its url.
#pragma once

#include <memory>

#include "server/http.h"
#include "server/messages_api.h"
#include "server/openai_api.h"
#include "server/pooling_api.h"
#include "server/responses_api.h"

namespace quire::server {

class BatchEndpoints {
 public:
  // All must outlive it.
  BatchEndpoints(const OpenAiApi& openai, ResponsesApi& responses, const MessagesApi& messages,
                 const PoolingApi& pooling)
      : openai_(openai), responses_(responses), messages_(messages), pooling_(pooling) {}

  // REQUIRES: is_batch_endpoint() of the request's path.
  void operator()(const std::shared_ptr<Exchange>& exchange) const {
    const std::string& path = exchange->request().path;
    if (path == "/v1/chat/completions") {
      openai_.chat_completions(exchange);
    } else if (path == "/v1/completions") {
      openai_.completions(exchange);
    } else if (path == "/v1/responses") {
      responses_.create(exchange);
    } else if (path == "/v1/embeddings") {
      pooling_.embeddings(exchange);
    } else if (path == "/v1/score") {
      pooling_.score(exchange);
    } else if (path == "/v1/rerank") {
      pooling_.rerank(exchange);
    } else if (path == "/classify") {
      pooling_.classify(exchange);
    } else if (path == "/pooling") {
      pooling_.pooling(exchange);
    } else {
      messages_.create(exchange);
    }
  }

 private:
  const OpenAiApi& openai_;
  ResponsesApi& responses_;
  const MessagesApi& messages_;
  const PoolingApi& pooling_;
};

}  // namespace quire::server
