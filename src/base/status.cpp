#include "base/status.h"

namespace quire {

std::string_view to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid_argument";
    case StatusCode::kNotFound:
      return "not_found";
    case StatusCode::kResourceExhausted:
      return "resource_exhausted";
    case StatusCode::kUnimplemented:
      return "unimplemented";
    case StatusCode::kDataLoss:
      return "data_loss";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

namespace {

const std::string& nothing() {
  static const std::string empty;
  return empty;
}

}  // namespace

Status::Status(StatusCode code, std::string message)
    : error_(new Error{.code = code, .message = std::move(message), .param = {}}) {
  QUIRE_CHECK(code != StatusCode::kOk);
}

Status::Status(const Status& other) : error_(other.ok() ? nullptr : new Error(*other.error_)) {}

const std::string& Status::message() const {
  return ok() ? nothing() : error_->message;
}

const std::string& Status::param() const {
  return ok() ? nothing() : error_->param;
}

Status Status::with_param(std::string param) && {
  if (!ok()) error_->param = std::move(param);
  return std::move(*this);
}

int Status::retry_after() const {
  return ok() ? 0 : error_->retry_after;
}

Status Status::with_retry_after(int seconds) && {
  if (!ok()) error_->retry_after = seconds;
  return std::move(*this);
}

Status Status::with_prefix(std::string_view prefix) && {
  if (!ok()) error_->message.insert(0, prefix);
  return std::move(*this);
}

void Status::release(Error* error) {
  delete error;
}

Status make_error(StatusCode code, fmt::string_view format, fmt::format_args args) {
  return {code, fmt::vformat(format, args)};
}

}  // namespace quire
