#include "server/messages_api.h"

#include <boost/json.hpp>

#include "server/json_fields.h"
#include "server/messages_schema.h"
#include "server/messages_writer.h"

namespace quire::server {
namespace json = boost::json;

Status MessagesApi::answer_create(const std::shared_ptr<Exchange>& exchange) const {
  QUIRE_ASSIGN_OR_RETURN(const json::object body, parse_json_object(exchange->take_body()));
  QUIRE_ASSIGN_OR_RETURN(const ChatRequest request,
                         parse_messages_request(body, /*counted=*/false, generator_.limits()));
  const int64_t max_tokens = *request.options.params.max_tokens;
  return with_messages_param(
      generator_.start_chat(exchange, request, "msg_", [max_tokens](AnswerContext context, size_t) {
        return std::make_unique<MessagesWriter>(std::move(context), max_tokens);
      }));
}

Status MessagesApi::answer_count(const std::shared_ptr<Exchange>& exchange) const {
  QUIRE_ASSIGN_OR_RETURN(const json::object body, parse_json_object(exchange->take_body()));
  QUIRE_ASSIGN_OR_RETURN(const ChatRequest request,
                         parse_messages_request(body, /*counted=*/true, generator_.limits()));
  QUIRE_RETURN_IF_ERROR(generator_.check_model(request.options.model));
  QUIRE_ASSIGN_OR_RETURN(const PreparedPrompt prompt, generator_.render(request));
  exchange->respond({200, "application/json", {}, json::serialize(json::object{{"input_tokens", prompt.ids.size()}})});
  return {};
}

void MessagesApi::create(const std::shared_ptr<Exchange>& exchange) const {
  generator_.answer(exchange, answer_create(exchange));
}
void MessagesApi::count_tokens(const std::shared_ptr<Exchange>& exchange) const {
  generator_.answer(exchange, answer_count(exchange));
}

}  // namespace quire::server
