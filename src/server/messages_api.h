// Anthropic's /v1/messages and /v1/messages/count_tokens.
#pragma once

#include <memory>

#include "base/status.h"
#include "server/generator.h"
#include "server/http.h"

namespace quire::server {

class MessagesApi {
 public:
  // It must outlive this.
  explicit MessagesApi(const Generator& generator) : generator_(generator) {}

  // Each answers the exchange: now, or by a Generation that lives on with it. Any thread.
  void create(const std::shared_ptr<Exchange>& exchange) const;
  void count_tokens(const std::shared_ptr<Exchange>& exchange) const;

 private:
  Status answer_create(const std::shared_ptr<Exchange>& exchange) const;
  Status answer_count(const std::shared_ptr<Exchange>& exchange) const;

  const Generator& generator_;
};

}  // namespace quire::server
