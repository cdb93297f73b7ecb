// Log lines for the operator, on standard error. A thin front of spdlog's default logger, whose level and pattern cli/
// sets once at start; its headers are read there and in log.cpp alone: they take a compiler longest.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// A line that cannot be written for want of memory is left out.
void log_line(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept;

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kDebug, format, fmt::make_format_args(args...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, format, fmt::make_format_args(args...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, format, fmt::make_format_args(args...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, format, fmt::make_format_args(args...));
}

// What belongs to a line beside its message, for logs that programs read.
struct LogField {
  std::string_view name;
  std::string value;
  bool number = false;  // the value is one
};
using LogFields = std::vector<LogField>;

void log_with(LogLevel level, const LogFields& fields, std::string_view message);
// The fields of the line that this thread is writing, for the formatter; nullptr: none.
const LogFields* log_fields();

// A line about one request.
template <typename... Args>
void log_request(LogLevel level, std::string_view request_id, fmt::format_string<Args...> format, Args&&... args) {
  log_with(level, {{"request_id", std::string(request_id)}}, fmt::format(format, std::forward<Args>(args)...));
}

// "debug", "info", "warning" or "error": the least that is written.
std::string_view log_level();
// False: there is no such level.
bool set_log_level(std::string_view name);
// Nothing is written from here on, until a level is set.
void silence_log();

}  // namespace quire
