#include "server/messages_api.h"

#include <algorithm>
#include <limits>

#include <boost/json.hpp>

#include "server/messages_schema.h"
#include "server/messages_writer.h"
#include "server/model_request.h"

namespace quire::server {
namespace json = boost::json;

namespace {

Status answer_create(const ModelRequest& asked) {
  QUIRE_ASSIGN_OR_RETURN(const ChatRequest request,
                         parse_messages_request(asked.body, /*counted=*/false, asked.generator().limits()));
  const SchemaLimits& limits = asked.generator().limits();
  const int32_t max_tokens = std::min(*request.options.params.max_tokens,
                                      limits.defaults.max_new_tokens.value_or(std::numeric_limits<int32_t>::max()));
  return with_messages_param(
      asked.generator().start_chat(asked.exchange, request, "msg_", [max_tokens](AnswerContext context, size_t) {
        return std::make_unique<MessagesWriter>(std::move(context), max_tokens);
      }));
}

Status answer_count(const ModelRequest& asked) {
  QUIRE_ASSIGN_OR_RETURN(const ChatRequest request,
                         parse_messages_request(asked.body, /*counted=*/true, asked.generator().limits()));
  QUIRE_ASSIGN_OR_RETURN(const PreparedPrompt prompt,
                         asked.generator().render(request, asked.generator().budget(), /*whole=*/true));
  asked.exchange->respond(
      {200, "application/json", {}, json::serialize(json::object{{"input_tokens", prompt.ids.size()}})});
  return {};
}

}  // namespace

void MessagesApi::create(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_create);
}
void MessagesApi::count_tokens(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_count);
}

}  // namespace quire::server
