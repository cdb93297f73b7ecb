#include "server/api_error.h"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "base/log.h"
#include "server/utf8.h"

namespace quire::server {

std::string_view error_type(int http_status) {
  switch (http_status) {
    case 400:
    case 405:
    case 411:
    case 413:
    case 415:
    case 417:
    case 431:
    case 505:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 408:
      return "TimeoutError";
    case 422:
      return "UnprocessableEntityError";
    case 429:
      return "RateLimitError";
    case 501:
      return "NotImplementedError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return "InternalServerError";
  }
}

namespace {

// May quote a path with any bytes in it.
std::string tellable(std::string message) {
  if (!is_utf8(message)) {
    std::replace_if(
        message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
  }
  return message;
}

std::string_view anthropic_error_type(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 408:
      return "timeout_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "api_error";
  }
}

HttpResponse with_body(const ApiError& error, const boost::json::object& body) {
  HttpResponse response;
  response.status = error.status;
  response.body = boost::json::serialize(body);
  response.error_param = error.param;
  if (error.retry_after > 0) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace

boost::json::object error_object(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? boost::json::value(nullptr) : boost::json::value(text);
  };
  return {{"error",
           {{"message", tellable(error.message)},
            {"type", error_type(error.status)},
            {"param", or_null(error.param)},
            {"code", or_null(error.code)}}}};
}

boost::json::object anthropic_error_object(const ApiError& error) {
  return {{"type", "error"},
          {"error", {{"type", anthropic_error_type(error.status)}, {"message", tellable(error.message)}}}};
}

HttpResponse error_response(const ApiError& error) {
  return with_body(error, error_object(error));
}

HttpResponse error_response_at(std::string_view path, const ApiError& error) {
  constexpr std::string_view kMessages = "/v1/messages";
  const bool anthropic = path == kMessages || (path.starts_with(kMessages) && path[kMessages.size()] == '/');
  return anthropic ? with_body(error, anthropic_error_object(error)) : error_response(error);
}

ApiError to_api_error(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
      return {400, status.message(), status.param(), status.param() == kOverflowParam ? "context_length_exceeded" : "",
              0};
    case StatusCode::kNotFound:
      return {404, status.message(), status.param(), status.param() == "model" ? "model_not_found" : "", 0};
    case StatusCode::kResourceExhausted:
      return {429, status.message(), status.param(), "rate_limit_exceeded", std::max(status.retry_after(), 1)};
    case StatusCode::kUnimplemented:
      return {501, status.message(), status.param(), "", 0};
    case StatusCode::kUnavailable:
      return {503, status.message(), status.param(), "", 1};
    case StatusCode::kDeadlineExceeded:
      return {408, status.message(), status.param().empty() ? "timeout" : status.param(), "deadline_exceeded", 0};
    case StatusCode::kOk:
    case StatusCode::kDataLoss:
    case StatusCode::kCancelled:
    case StatusCode::kInternal:
      break;
  }
  return {500, "The server failed while answering this request; its log says more.", "", "internal_error", 0};
}

void answer_error(Exchange& exchange, const Status& status, int retry_after) {
  ApiError error = to_api_error(status);
  if (error.status == 429 && status.retry_after() == 0) error.retry_after = retry_after;
  if (error.status >= 500 && error.status != 501 && error.status != 503) {
    log_request(LogLevel::kError, exchange.request().id, "the request failed: {}", status.message());
  }
  exchange.respond(error_response_at(exchange.request().path, error));
}

void guarded(Exchange& exchange, FunctionRef<void()> work) {
  try {
    work();
  } catch (const std::exception& error) {
    answer_error(exchange, internal_error("{}", error.what()));
  }
}

std::string_view shortened(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && is_utf8_continuation(text[most])) --most;
  return text.substr(0, most);
}

std::string in_quotes(std::string_view text, size_t most) {
  return fmt::format("'{}{}'", shortened(text, most), text.size() > most ? "…" : "");
}

}  // namespace quire::server
