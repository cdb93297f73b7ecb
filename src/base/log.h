// Log lines for the operator, on standard error. A thin front of spdlog's default logger, whose level and pattern cli/
// sets once at start.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::debug(format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  spdlog::error(format, std::forward<Args>(args)...);
}

enum class LogLevel { kDebug, kInfo, kWarning, kError };

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

}  // namespace quire
