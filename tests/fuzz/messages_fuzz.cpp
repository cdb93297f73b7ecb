// The bodies of /v1/messages and /v1/messages/count_tokens, which become a chat, or an error by its field. Three bytes
// go before one: which of them it is of, and what of the body is grown how far.
#include <boost/json.hpp>

#include "server/json_fields.h"
#include "server/messages_schema.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quire;
  constexpr server::SchemaLimits kLimits{.max_model_len = 4096, .trust_request_chat_template = true};
  fuzz::Input input(data, size);
  const bool counted = input.byte() % 2 == 1;
  const uint8_t where = input.byte();
  const uint8_t grow = input.byte();
  const std::string text = fuzz::grown(input.rest(), where, grow);
  const fuzz::TimePerByte limit(text.size());
  const auto body = server::parse_json_object(text);
  if (!body.ok()) {
    fuzz::check_error(body.status());
    return 0;
  }
  const auto chat = server::parse_messages_request(*body, counted, kLimits);
  if (!chat.ok()) {
    fuzz::check_error(chat.status());
    fuzz::check_error(server::with_messages_param(chat.status()));
    return 0;
  }
  QUIRE_CHECK(!chat->messages.empty());
  QUIRE_CHECK(counted || chat->options.params.max_tokens.has_value());
  const Status status = validate(chat->options.params, {.vocab_size = 1000});
  if (!status.ok()) fuzz::check_error(status);
  return 0;
}
