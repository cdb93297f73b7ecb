// /v1/responses: answers that may be kept, gone on from, and made in the background.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "server/http.h"
#include "server/local_exchange.h"
#include "server/model_request.h"
#include "server/response_store.h"
#include "server/responses_schema.h"

namespace quire::server {

class ResponsesApi {
 public:
  // All must outlive it.
  ResponsesApi(const ServerConfig& config, Models& models, LocalExchanges& background);

  // Each answers the exchange: now, or by a Generation that lives on with it. Any thread. The id of those about one
  // response is the request's argument.
  void create(const std::shared_ptr<Exchange>& exchange);
  void retrieve(const std::shared_ptr<Exchange>& exchange);
  void cancel(const std::shared_ptr<Exchange>& exchange);
  void remove(const std::shared_ptr<Exchange>& exchange);
  void input_items(const std::shared_ptr<Exchange>& exchange);

 private:
  Status answer_create(const ModelRequest& asked);
  Status answer_retrieve(const std::shared_ptr<Exchange>& exchange);
  Status answer_cancel(const std::shared_ptr<Exchange>& exchange);
  Status answer_remove(const std::shared_ptr<Exchange>& exchange);
  Status answer_input_items(const std::shared_ptr<Exchange>& exchange);
  Status start_in_background(const ModelRequest& asked, const ResponsesRequest& request, StoredResponse stored,
                             boost::json::object response);

  Models& models_;
  LocalExchanges& background_;
  const std::shared_ptr<ResponseStore> store_;  // writers of answers that are still to come share it
};

}  // namespace quire::server
