#include "bench/report.h"

#include <cmath>
#include <fstream>
#include <vector>

#include <fmt/format.h>

namespace quire::bench {
namespace {

namespace json = boost::json;

constexpr int kIndent = 4;

void write(std::string& out, const json::value& value, int depth) {
  const auto new_line = [&](int levels) {
    out += '\n';
    out.append(static_cast<size_t>(levels * kIndent), ' ');
  };
  if (const json::object* object = value.if_object(); object != nullptr && !object->empty()) {
    out += '{';
    bool first = true;
    for (const auto& [key, member] : *object) {
      if (!first) out += ',';
      first = false;
      new_line(depth + 1);
      out += json::serialize(json::value(key)) + ": ";
      write(out, member, depth + 1);
    }
    new_line(depth);
    out += '}';
  } else if (const json::array* array = value.if_array(); array != nullptr && !array->empty()) {
    out += '[';
    bool first = true;
    for (const json::value& element : *array) {
      if (!first) out += ',';
      first = false;
      new_line(depth + 1);
      write(out, element, depth + 1);
    }
    new_line(depth);
    out += ']';
  } else if (value.is_double()) {
    const double number = value.get_double();
    out += std::isfinite(number) ? fmt::format("{}", number) : "null";
  } else {
    out += json::serialize(value);
  }
}

}  // namespace

std::string heading(std::string_view title, char fill) {
  constexpr size_t kWidth = 50;
  const std::string padded = " " + std::string(title) + " ";
  if (title.empty()) return std::string(kWidth, fill) + "\n";
  const size_t free = kWidth > padded.size() ? kWidth - padded.size() : 0;
  return std::string(free / 2, fill) + padded + std::string(free - free / 2, fill) + "\n";
}

std::string line(std::string_view name, int64_t value) {
  return fmt::format("{:<40} {:<10}\n", name, value);
}

std::string line(std::string_view name, double value) {
  return fmt::format("{:<40} {:<10.2f}\n", name, value);
}

std::string line(std::string_view name, std::string_view value) {
  return fmt::format("{:<40} {:<10}\n", name, value);
}

std::string percent_name(double percent) {
  return percent == std::floor(percent) ? fmt::format("{:.0f}", percent) : fmt::format("{}", percent);
}

std::string to_text(const json::value& value) {
  std::string out;
  write(out, value, 0);
  out += '\n';
  return out;
}

Status write_json(const std::string& path, const json::value& value) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << to_text(value);
  file.close();
  if (!file) return invalid_argument("the results cannot be written to \"{}\"; does its folder exist?", path);
  return {};
}

json::value figure(double value) {
  if (!std::isfinite(value)) return nullptr;
  return value;
}

json::array figures(const std::vector<double>& values) {
  json::array all;
  for (const double value : values) all.push_back(figure(value));
  return all;
}

}  // namespace quire::bench
