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

// Control characters would make lines, or move the cursor and colour the terminal, of whoever reads the log; some come
// from clients.
std::string escaped(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F, in UTF-8 or alone, are control characters too.
    const bool two_bytes =
        byte == 0xC2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if (byte == '\n') {
      out += "\\n";
    } else if (byte == '\r') {
      out += "\\r";
    } else if (byte == '\t') {
      out += "\\t";
    } else if (two_bytes) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if (byte < 0x20 || byte == 0x7F) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    } else {
      out += text[i];
    }
  }
  return out;
}

// The line's message.
class MessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&, spdlog::memory_buf_t& out) override {
    fmt::format_to(std::back_inserter(out), "{}", escaped({line.payload.data(), line.payload.size()}));
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<MessageFlag>(); }
};

// The line's fields as " name=value"; values with blanks in them are quoted.
class FieldsFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg&, const std::tm&, spdlog::memory_buf_t& out) override {
    const LogFields* fields = log_fields();
    if (fields == nullptr) return;
    for (const LogField& field : *fields) {
      std::string value = escaped(field.value);
      const bool bare = value == field.value && !value.empty() && value.find_first_of(" \"=") == std::string::npos;
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
  formatter->add_flag<MessageFlag>('Q').add_flag<FieldsFlag>('*').set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %Q%*");
  spdlog::set_formatter(std::move(formatter));
}

void log_as_json() {
  spdlog::set_formatter(std::make_unique<JsonFormatter>());
}

}  // namespace quire::cli
