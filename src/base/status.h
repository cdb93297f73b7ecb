// Status and Result<T>: how anything that can fail for a reason outside our code (files, network,
// user input) says so. A bug in our own code is a CHECK (base/check.h), never a Status.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "base/check.h"

namespace quire {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller's input is wrong, and will be wrong again
  kNotFound,           // a named thing does not exist
  kResourceExhausted,  // a bound is full now; may succeed later
  kUnimplemented,      // understood, not built
  kDataLoss,           // a file is corrupt or truncated
  kCancelled,
  kDeadlineExceeded,
  kUnavailable,  // shutting down or not started
  kInternal,     // a fault of ours that only this request pays for
};

// "invalid_argument", "not_found", ...
std::string_view to_string(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {
    QUIRE_CHECK(code != StatusCode::kOk);
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The request field at fault ("temperature"), empty when no single one is.
  const std::string& param() const { return param_; }
  Status with_param(std::string param) && {
    param_ = std::move(param);
    return std::move(*this);
  }
  // Says where: "config.json: " + message. No effect on an ok status.
  Status with_prefix(std::string_view prefix) && {
    if (!ok()) message_.insert(0, prefix);
    return std::move(*this);
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string param_;
};

// Message in fmt's syntax: invalid_argument("tensor {}: expected {}, found {}", ...).
template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status not_found(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kNotFound, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status resource_exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kResourceExhausted, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status unimplemented(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kUnimplemented, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status data_loss(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kDataLoss, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status cancelled(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kCancelled, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status deadline_exceeded(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kDeadlineExceeded, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kUnavailable, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return {StatusCode::kInternal, fmt::format(format, std::forward<Args>(args)...)};
}

// A T, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    QUIRE_CHECK(!std::get<Status>(state_).ok());
  }

  bool ok() const { return std::holds_alternative<T>(state_); }
  // Ok when there is a value.
  Status status() const { return ok() ? Status() : std::get<Status>(state_); }

  // REQUIRES: ok().
  T& value() & {
    require();
    return std::get<T>(state_);
  }
  const T& value() const& {
    require();
    return std::get<T>(state_);
  }
  T&& value() && {
    require();
    return std::get<T>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void require() const {
    if (!ok()) check_failed("Result holds an error", __FILE__, __LINE__, std::get<Status>(state_).message());
  }
  std::variant<T, Status> state_;
};

}  // namespace quire

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)

// Leaves the function with the error, if there is one.
#define QUIRE_RETURN_IF_ERROR(expression)                                                     \
  do {                                                                                        \
    if (::quire::Status quire_status = (expression); !quire_status.ok()) return quire_status; \
  } while (false)

// QUIRE_ASSIGN_OR_RETURN(auto file, open(path)): binds the value or leaves with the error.
#define QUIRE_ASSIGN_OR_RETURN(target, expression) \
  QUIRE_ASSIGN_OR_RETURN_INNER(QUIRE_CONCAT(quire_result_, __LINE__), target, expression)
#define QUIRE_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return result.status();                      \
  target = std::move(result).value()
