#include "base/log.h"

#include <spdlog/spdlog.h>

#include <array>
#include <utility>

namespace quire {

namespace {

thread_local const LogFields* fields_of_this_line = nullptr;

constexpr std::array<std::pair<std::string_view, spdlog::level::level_enum>, 4> kLevels = {{
    {"debug", spdlog::level::debug},
    {"info", spdlog::level::info},
    {"warning", spdlog::level::warn},
    {"error", spdlog::level::err},
}};

}  // namespace

void log_line(LogLevel level, fmt::string_view format, fmt::format_args args) noexcept {
  const auto of_spdlog = kLevels[static_cast<size_t>(level)].second;
  if (!spdlog::should_log(of_spdlog)) return;
  try {
    spdlog::log(of_spdlog, spdlog::string_view_t(fmt::vformat(format, args)));
  } catch (...) {  // spdlog itself throws nothing
  }
}

const LogFields* log_fields() {
  return fields_of_this_line;
}

void log_with(LogLevel level, const LogFields& fields, std::string_view message) {
  struct Restore {
    ~Restore() { fields_of_this_line = nullptr; }
  } restore;
  fields_of_this_line = &fields;
  spdlog::log(kLevels[static_cast<size_t>(level)].second, "{}", message);
}

std::string_view log_level() {
  for (const auto& [name, level] : kLevels) {
    if (level == spdlog::get_level()) return name;
  }
  return "other";
}

bool set_log_level(std::string_view name) {
  for (const auto& [known, level] : kLevels) {
    if (known != name) continue;
    spdlog::set_level(level);
    return true;
  }
  return false;
}

void silence_log() {
  spdlog::set_level(spdlog::level::off);
}

}  // namespace quire
