// Errors as clients read them, OpenAI's: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/function_ref.h"
#include "base/status.h"
#include "server/http.h"

namespace quire::server {

// What an error names where a prompt is too long.
inline constexpr const char* kOverflowParam = "input_tokens";

struct ApiError {
  int status = 400;     // of HTTP
  std::string message;  // for a person; never an address, a path or a secret
  std::string param;    // the field at fault; empty: null
  std::string code;     // for programs; empty: null
  int retry_after = 0;  // seconds; 0: no such header
};

// "BadRequestError" for 400, "NotFoundError" for 404, ...
std::string_view error_type(int http_status);

boost::json::object error_object(const ApiError& error);
HttpResponse error_response(const ApiError& error);

// The same in Anthropic's shape: {"type": "error", "error": {"type", "message"}}.
boost::json::object anthropic_error_object(const ApiError& error);
// In the shape of the API that the path belongs to: Anthropic's under /v1/messages, else OpenAI's.
HttpResponse error_response_at(std::string_view path, const ApiError& error);

// invalid_argument 400, not_found 404, resource_exhausted 429, unimplemented 501, unavailable 503, deadline_exceeded
// 408, anything else 500. What went wrong inside (500) is not told to the client beyond that.
ApiError to_api_error(const Status& status);

// Answers with the error. retry_after: seconds, of a 429. REQUIRES: !status.ok().
void answer_error(Exchange& exchange, const Status& status, int retry_after = 1);

// Where no memory is left, most likely, this request alone pays: the exception becomes its answer.
void guarded(Exchange& exchange, FunctionRef<void()> work);

// At most `most` bytes of a text, cut between characters.
std::string_view shortened(std::string_view text, size_t most);

// Strings that go into a message: quoted, at most `most` bytes, cut between characters.
std::string in_quotes(std::string_view text, size_t most = 100);

}  // namespace quire::server
