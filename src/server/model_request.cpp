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

// A request's body and its place among all, until it is prepared.
struct Body {
  HeldBytes memory;
  std::string text;
  std::unique_ptr<LoadTicket> ticket;  // while it waits for its model
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
  // Shared, for whoever waits is copied, and a body may be large.
  const auto body = std::make_shared<Body>();
  body->memory = exchange->take_memory();
  body->text = exchange->take_body();
  auto parsed = parse_json_object(body->text);
  if (!parsed.ok()) return answer_error(*exchange, parsed.status());
  const std::string name = model_name(*parsed);
  const auto prepare = [exchange, answer = std::move(answer)](const Models::LeaseOr& lease,
                                                              const json::object& fields) {
    if (!lease.ok()) return answer_error(*exchange, lease.status());
    guarded(*exchange, [&] {
      const ModelRequest request{holding(exchange, *lease), *lease, fields};
      const Status status = answer(request);
      if (!status.ok()) answer_error(*exchange, status, request.generator().retry_after());
    });
  };
  if (const auto lease = models.ready(name)) {
    body->text = {};
    return prepare(lease, *parsed);
  }
  if (!exchange->request().in_idle_time) {  // else there are few of them
    body->ticket = models.wait(exchange->request().tenant);
    if (body->ticket == nullptr) {
      return answer_error(*exchange,
                          resource_exhausted("Requests of this API key fill its share of those that wait for models "
                                             "to be loaded; try again later."),
                          models.retry_after());
    }
  }
  // Who waits does so as text, which is what is counted: read, a body may take many times as much.
  parsed = json::object();
  models.use(name, [exchange, body, prepare](const Models::LeaseOr& lease) {
    body->ticket.reset();
    if (!lease.ok()) return answer_error(*exchange, lease.status());
    guarded(*exchange, [&] {
      const auto again = parse_json_object(std::exchange(body->text, {}));
      if (!again.ok()) return answer_error(*exchange, again.status());
      prepare(lease, *again);
    });
    body->memory.release();  // others that waited for the model may have their turn before this goes
  });
}

}  // namespace quire::server
