// Status and Result<T>: how anything that can fail for a reason outside our code (files, network,
// user input) says so. A bug in our own code is a CHECK (base/check.h), never a Status.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

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

// As large as a pointer, and as cheap to hand on: what an error says lies elsewhere.
class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  [[gnu::cold]] Status(StatusCode code, std::string message);
  [[gnu::cold]] Status(const Status& other);
  Status(Status&& other) noexcept : error_(std::exchange(other.error_, nullptr)) {}  // which is ok then
  Status& operator=(Status other) noexcept {
    std::swap(error_, other.error_);
    return *this;
  }
  ~Status() {
    if (error_ != nullptr) [[unlikely]]
      release(error_);
  }

  bool ok() const { return error_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : error_->code; }
  const std::string& message() const;

  // The request field at fault ("temperature"), empty when no single one is.
  const std::string& param() const;
  [[gnu::cold]] Status with_param(std::string param) &&;
  // Of kResourceExhausted: the seconds after which it will succeed, where these are known; else 0.
  int retry_after() const;
  [[gnu::cold]] Status with_retry_after(int seconds) &&;
  // Says where: "config.json: " + message. No effect on an ok status.
  [[gnu::cold]] Status with_prefix(std::string_view prefix) &&;

 private:
  struct Error {
    StatusCode code;
    std::string message;
    std::string param;
    int retry_after = 0;
  };
  [[gnu::cold]] static void release(Error* error);
  Error* error_ = nullptr;  // nullptr: ok
};

[[gnu::cold]] Status make_error(StatusCode code, fmt::string_view format, fmt::format_args args);

// Message in fmt's syntax: invalid_argument("tensor {}: expected {}, found {}", ...).
template <typename... Args>
[[gnu::cold]] Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kInvalidArgument, format, fmt::make_format_args(args...));
}
template <typename... Args>
[[gnu::cold]] Status not_found(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kNotFound, format, fmt::make_format_args(args...));
}
template <typename... Args>
[[gnu::cold]] Status resource_exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kResourceExhausted, format, fmt::make_format_args(args...));
}
template <typename... Args>
[[gnu::cold]] Status unimplemented(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kUnimplemented, format, fmt::make_format_args(args...));
}
template <typename... Args>
[[gnu::cold]] Status data_loss(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kDataLoss, format, fmt::make_format_args(args...));
}
template <typename... Args>
[[gnu::cold]] Status cancelled(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kCancelled, format, fmt::make_format_args(args...));
}
template <typename... Args>
[[gnu::cold]] Status deadline_exceeded(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kDeadlineExceeded, format, fmt::make_format_args(args...));
}
template <typename... Args>
[[gnu::cold]] Status unavailable(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kUnavailable, format, fmt::make_format_args(args...));
}
template <typename... Args>
[[gnu::cold]] Status internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return make_error(StatusCode::kInternal, format, fmt::make_format_args(args...));
}

// A T, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    QUIRE_CHECK(!status_.ok());
  }

  bool ok() const { return value_.has_value(); }
  // Ok when there is a value.
  Status status() const { return status_; }

  // REQUIRES: ok().
  T& value() & {
    require();
    return *value_;
  }
  const T& value() const& {
    require();
    return *value_;
  }
  T&& value() && {
    require();
    return *std::move(value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void require() const {
    if (!ok()) [[unlikely]]
      check_failed("Result holds an error", __FILE__, __LINE__, status_.message());
  }
  std::optional<T> value_;
  Status status_;
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
