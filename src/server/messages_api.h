// Anthropic's /v1/messages and /v1/messages/count_tokens.
#pragma once

#include <memory>

#include "server/http.h"
#include "server/models.h"

namespace quire::server {

class MessagesApi {
 public:
  // They must outlive this.
  explicit MessagesApi(Models& models) : models_(models) {}

  // Each answers the exchange: now, or by a Generation that lives on with it. Any thread.
  void create(const std::shared_ptr<Exchange>& exchange) const;
  void count_tokens(const std::shared_ptr<Exchange>& exchange) const;

 private:
  Models& models_;
};

}  // namespace quire::server
