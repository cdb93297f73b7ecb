// The body of /v1/responses, which becomes a chat, or an error by its field. Three bytes go before it: whether there is
// something that it goes on from, and what of the body is grown how far.
#include <boost/json.hpp>

#include "server/json_fields.h"
#include "server/responses_schema.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  constexpr server::SchemaLimits kLimits{.max_model_len = 4096, .trust_request_chat_template = true};
  fuzz::Input input(data, size);
  boost::json::array previous;
  if (input.byte() % 2 == 1) {
    previous = {{{"role", "user"}, {"content", "Hi"}}, {{"role", "assistant"}, {"content", "Hello"}}};
  }
  const uint8_t where = input.byte();
  const uint8_t grow = input.byte();
  const std::string text = fuzz::grown(input.rest(), where, grow);
  const fuzz::TimePerByte limit(text.size());
  const auto body = server::parse_json_object(text);
  if (!body.ok()) {
    fuzz::check_error(body.status());
    return 0;
  }
  const auto id = server::previous_response_id(*body);
  if (!id.ok()) fuzz::check_error(id.status());
  const size_t num_previous = previous.size();
  const auto request = server::parse_responses_request(*body, std::move(previous), kLimits);
  if (!request.ok()) {
    fuzz::check_error(request.status());
    fuzz::check_error(server::with_responses_param(request.status()));
    return 0;
  }
  QUIRE_CHECK(request->num_instructions <= 1);
  QUIRE_CHECK(request->conversation.size() >= num_previous);
  QUIRE_CHECK(request->chat.messages.size() == request->conversation.size() + request->num_instructions);
  for (const auto& item : request->input_items) QUIRE_CHECK(item.is_object() && item.get_object().contains("id"));
  const Status status = validate(request->chat.options.params, {.vocab_size = 1000});
  if (!status.ok()) fuzz::check_error(status);
  return 0;
}
