#include "cli/numbers.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

namespace quire::cli {

std::optional<int64_t> whole_number(std::string_view text) {
  constexpr std::string_view kLetters = "kmgt";
  double unit = 1;
  if (!text.empty() && std::isalpha(static_cast<unsigned char>(text.back())) != 0) {
    const auto letter = static_cast<unsigned char>(text.back());
    const size_t power = kLetters.find(static_cast<char>(std::tolower(letter)));
    if (power == std::string_view::npos) return std::nullopt;
    unit = std::pow(std::islower(letter) != 0 ? 1000.0 : 1024.0, static_cast<double>(power + 1));
    text.remove_suffix(1);
  }
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string_view::npos) return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  const double value = number * unit;
  if (value != std::floor(value) || value >= 9007199254740992.0) return std::nullopt;
  return static_cast<int64_t>(value);
}

CLI::Validator as_whole_number() {
  return {[](std::string& text) {
            const auto number = whole_number(text);
            if (!number)
              return fmt::format("\"{}\" is no whole number; one looks like 8192, 8k (8,000) or 8K (8,192)", text);
            text = std::to_string(*number);
            return std::string();
          },
          "", ""};
}

CLI::Validator as_bytes() {
  return {[](std::string& text) {
            if (const auto number = whole_number(text)) {
              text = std::to_string(*number);
              return std::string();
            }
            return CLI::AsSizeValue(/*kb_is_1000=*/false)(text);
          },
          "", ""};
}

CLI::Validator as_port() {
  return {[](const std::string& text) {
            int64_t port = -1;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
            const bool is_port = error == std::errc() && end == text.data() + text.size() && port >= 0 && port <= 65535;
            return is_port ? std::string() : fmt::format("\"{}\" is no port, a number from 0 to 65535", text);
          },
          "", ""};
}

}  // namespace quire::cli
