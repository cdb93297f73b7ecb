// Vectors and scores: /v1/embeddings, /pooling, /classify, /v1/score, /v1/rerank and their other names.
#pragma once

#include <memory>
#include <string_view>

#include "server/http.h"
#include "server/models.h"

namespace quire::server {

class PoolingApi {
 public:
  // It must outlive this.
  explicit PoolingApi(Models& models) : models_(models) {}

  // Each answers the exchange: now, or by a PoolingAnswer that lives on with it. Any thread.
  void embeddings(const std::shared_ptr<Exchange>& exchange) const;
  void pooling(const std::shared_ptr<Exchange>& exchange) const;
  void classify(const std::shared_ptr<Exchange>& exchange) const;
  void score(const std::shared_ptr<Exchange>& exchange) const;
  void rerank(const std::shared_ptr<Exchange>& exchange) const;
  void cohere_embed(const std::shared_ptr<Exchange>& exchange) const;  // /v1/embed and /v2/embed

 private:
  Models& models_;
};

}  // namespace quire::server
