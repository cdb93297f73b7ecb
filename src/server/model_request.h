// The way of a request to the model that it names.
#pragma once

#include <functional>
#include <memory>

#include <boost/json.hpp>

#include "base/status.h"
#include "server/http.h"
#include "server/models.h"

namespace quire::server {

// A request whose model is loaded.
struct ModelRequest {
  std::shared_ptr<Exchange> exchange;  // the model stays loaded as long as somebody holds it
  std::shared_ptr<const Models::Lease> lease;
  const boost::json::object& body;  // for the length of the call

  const Generator& generator() const { return lease->generator(); }
};

// An exchange by which the model stays loaded as long as somebody holds it.
std::shared_ptr<Exchange> holding(std::shared_ptr<Exchange> exchange, std::shared_ptr<const Models::Lease> lease);

// Reads the body as JSON, and calls `answer` when the model that it names is loaded: at once on this thread, or later
// on another. `answer` answers the exchange, or says why not, which then is the answer.
void with_model(Models& models, const std::shared_ptr<Exchange>& exchange,
                std::function<Status(const ModelRequest&)> answer);

}  // namespace quire::server
