// The body of POST /v1/responses. What it says becomes a chat, read by the same code as any other; what chats do not
// have is kept beside it. Unknown fields are ignored; a known one that is not built is refused by name.
#pragma once

#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"
#include "server/openai_schema.h"

namespace quire::server {

struct ResponsesRequest {
  ChatRequest chat;                  // its messages: instructions, what was said before, input
  size_t num_instructions = 0;       // of the messages, at the beginning: 0 or 1
  boost::json::array input_items;    // as they are listed, with ids
  boost::json::array conversation;   // chat messages to be stored: the same without instructions
  std::string previous_response_id;  // empty: none
  bool store = true;
  bool background = false;
  bool truncate = false;  // "truncation": "auto": the oldest messages may go where there is no room
  // What a response repeats of its request: "instructions", "temperature", "metadata" and the like.
  boost::json::object echo;
};

// previous: the chat messages of the response that this one goes on from.
// Errors: invalid_argument with param() in the names of this API.
Result<ResponsesRequest> parse_responses_request(const boost::json::object& body, boost::json::array previous,
                                                 const SchemaLimits& limits);
// The field alone: it must be known before the rest can be read. Errors: invalid_argument.
Result<std::string> previous_response_id(const boost::json::object& body);

// An error of a chat in the names of this API: "input" for "messages".
Status with_responses_param(Status status);

}  // namespace quire::server
