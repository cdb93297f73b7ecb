// The bodies of /v1/messages and /v1/messages/count_tokens, Anthropic's. What they say becomes a chat, read by the same
// code as any other. Unknown fields are ignored; a known one that is not built is refused by name.
#pragma once

#include <boost/json.hpp>

#include "base/status.h"
#include "server/openai_schema.h"

namespace quire::server {

// counted: only the prompt is wanted, and max_tokens may be missing.
// Errors: invalid_argument, in the names of this API.
Result<ChatRequest> parse_messages_request(const boost::json::object& body, bool counted, const SchemaLimits& limits);

// An error of a chat in the names of this API: "stop_sequences" for "stop".
Status with_messages_param(Status status);

}  // namespace quire::server
