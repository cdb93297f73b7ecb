#include "cli/log_format.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iterator>
#include <memory>
#include <string>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/formatter.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <boost/json.hpp>

#include "base/log.h"
#include "server/utf8.h"

namespace quire::cli {
namespace {

// The line's fields as " name=value"; values with blanks in them are quoted.
class FieldsFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&, spdlog::memory_buf_t& out) override {
    const LogFields* fields = log_fields();
    if (fields == nullptr) return;
    for (const LogField& field : *fields) {
      const bool bare = !field.value.empty() && field.value.find_first_of(" \"=") == std::string::npos;
      std::string value = field.value;
      std::replace(value.begin(), value.end(), '"', '\'');  // so that no value looks like two
      fmt::format_to(std::back_inserter(out), fmt::runtime(bare ? " {}={}" : " {}=\"{}\""), field.name, value);
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<FieldsFlag>(); }
};

std::string_view level_name(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return "error";
  if (level == spdlog::level::warn) return "warning";
  return level == spdlog::level::info ? "info" : "debug";
}

// A JSON string; bytes that are no UTF-8 become '?'.
std::string json_string(std::string_view text) {
  std::string valid(text);
  if (!server::is_utf8(valid)) {
    for (char& c : valid) {
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
    }
  }
  return boost::json::serialize(boost::json::value(valid));
}

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    const auto since = line.time.time_since_epoch();
    const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(since).count() % 1000;
    const auto to = std::back_inserter(out);
    fmt::format_to(to, R"({{"time":"{:%Y-%m-%dT%H:%M:%S}.{:03}Z","level":"{}","message":{})",
                   fmt::gmtime(std::chrono::system_clock::to_time_t(line.time)), milliseconds, level_name(line.level),
                   json_string({line.payload.data(), line.payload.size()}));
    if (const LogFields* fields = log_fields()) {
      for (const LogField& field : *fields) {
        fmt::format_to(to, R"(,"{}":{})", field.name, field.number ? field.value : json_string(field.value));
      }
    }
    fmt::format_to(to, "}}\n");
  }
  std::unique_ptr<formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

}  // namespace

void log_to_standard_error() {
  spdlog::set_default_logger(spdlog::stderr_color_mt("quire"));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<FieldsFlag>('*').set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v%*");
  spdlog::set_formatter(std::move(formatter));
}

void log_as_json() {
  spdlog::set_formatter(std::make_unique<JsonFormatter>());
}

}  // namespace quire::cli
