#include "server/model_request.h"

#include <string>
#include <utility>

#include "server/api_error.h"
#include "server/json_fields.h"

namespace quire::server {
namespace json = boost::json;

namespace {

// Lets go of the exchange before the model: what the exchange carries may look at the model to the last.
struct Hold {
  std::shared_ptr<const Models::Lease> lease;
  std::shared_ptr<Exchange> exchange;
  void operator()(Exchange*) {
    exchange.reset();
    lease.reset();
  }
};

// What is no text is found to be wrong where the body is looked at more closely.
std::string model_name(const json::object& body) {
  const json::value* name = body.if_contains("model");
  return name != nullptr && name->is_string() ? std::string(name->get_string()) : std::string();
}

}  // namespace

std::shared_ptr<Exchange> holding(std::shared_ptr<Exchange> exchange, std::shared_ptr<const Models::Lease> lease) {
  Exchange* held = exchange.get();
  return {held, Hold{std::move(lease), std::move(exchange)}};
}

void with_model(Models& models, const std::shared_ptr<Exchange>& exchange,
                std::function<Status(const ModelRequest&)> answer) {
  auto parsed = parse_json_object(exchange->take_body());
  if (!parsed.ok()) return answer_error(*exchange, parsed.status());
  // Shared, for whoever waits is copied, and a body may be large.
  const auto body = std::make_shared<const json::object>(std::move(*parsed));
  models.use(model_name(*body), [exchange, body, answer = std::move(answer)](Models::LeaseOr lease) {
    if (!lease.ok()) return answer_error(*exchange, lease.status());
    guarded(*exchange, [&] {
      const ModelRequest request{holding(exchange, *lease), *lease, *body};
      const Status status = answer(request);
      if (!status.ok()) answer_error(*exchange, status, request.generator().retry_after());
    });
  });
}

}  // namespace quire::server
