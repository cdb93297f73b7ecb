#include "cli/config_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "base/named_file.h"
#include "cli/vllm_arguments.h"

namespace quire::cli {
namespace {

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

// Without a comment: '#' at the beginning or behind white space, outside of quotes.
std::string_view without_comment(std::string_view line) {
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quote != 0) {
      if (c == '\\' && quote == '"') ++i;
      if (c == quote) quote = 0;
    } else if ((c == '"' || c == '\'') && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '[' || line[i - 1] == ',')) {
      quote = c;
    } else if (c == '#' && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '\t')) {
      return line.substr(0, i);
    }
  }
  return line;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  Result<std::vector<ConfigEntry>> run() {
    while (!rest_.empty()) {
      const size_t end = rest_.find('\n');
      ++number_;
      QUIRE_RETURN_IF_ERROR(line(rest_.substr(0, end)));
      rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
    }
    QUIRE_RETURN_IF_ERROR(end_list());
    return std::move(entries_);
  }

 private:
  Status error(std::string_view what, int number = 0) const {
    return invalid_argument("line {}: {}", number == 0 ? number_ : number, what);
  }

  // A key whose list has not one entry.
  Status end_list() const {
    if (!in_list_ || !entries_.back().values.empty()) return {};
    return error(fmt::format("{} has no value: write `{}: value`, or a list of `- value` lines under it",
                             entries_.back().key, entries_.back().key),
                 entries_.back().line);
  }

  Status line(std::string_view whole) {
    const std::string_view text = trimmed(without_comment(whole));
    if (text.empty()) return {};
    const bool indented = whole[0] == ' ' || whole[0] == '\t';
    if (text == "-" || text.starts_with("- ")) {
      if (!in_list_) return error("an entry of a list under no key");
      QUIRE_ASSIGN_OR_RETURN(std::string value, scalar(trimmed(text.substr(1))));
      entries_.back().values.push_back(std::move(value));
      return {};
    }
    if (indented) return error("is indented; sections inside sections are not read (JSON in one line is: {...})");
    if (text == "---" && entries_.empty()) return {};
    return key_and_value(text);
  }

  Status key_and_value(std::string_view text) {
    QUIRE_RETURN_IF_ERROR(end_list());
    const size_t colon = text.find(':');
    const bool has_key = colon != std::string_view::npos && colon > 0 &&
                         (colon + 1 == text.size() || text[colon + 1] == ' ' || text[colon + 1] == '\t');
    if (!has_key) return error(fmt::format("expected `key: value`, found `{}`", text));
    ConfigEntry entry{.key = std::string(trimmed(text.substr(0, colon))), .line = number_};
    if (entry.key.find_first_of(" \t\"'{[&*!|>%@`") != std::string::npos || entry.key.starts_with('-')) {
      return error(fmt::format("`{}` is no name of an argument", entry.key));
    }
    for (const ConfigEntry& other : entries_) {
      if (other.key == entry.key) return error(fmt::format("{} again; it is in line {}", entry.key, other.line));
    }
    const std::string_view value = trimmed(text.substr(colon + 1));
    in_list_ = value.empty();
    if (value.starts_with('[')) {
      QUIRE_ASSIGN_OR_RETURN(entry.values, list(value));
    } else if (!value.empty()) {
      QUIRE_ASSIGN_OR_RETURN(std::string one, scalar(value));
      entry.values.push_back(std::move(one));
    }
    entries_.push_back(std::move(entry));
    return {};
  }

  Result<std::vector<std::string>> list(std::string_view text) {
    if (!text.ends_with(']')) return error("the list does not end with ] in its line");
    text = text.substr(1, text.size() - 2);
    std::vector<std::string> values;
    while (!trimmed(text).empty()) {
      text = trimmed(text);
      size_t end = 0;
      if (text[0] == '"' || text[0] == '\'') {
        end = text.find(text[0], 1);
        if (end == std::string_view::npos) return error("a quote is not closed");
      }
      end = std::min(text.find(',', end), text.size());
      QUIRE_ASSIGN_OR_RETURN(std::string value, scalar(trimmed(text.substr(0, end))));
      values.push_back(std::move(value));
      text = text.substr(std::min(end + 1, text.size()));
    }
    return values;
  }

  Result<std::string> scalar(std::string_view text) const {
    if (text.empty()) return error("an entry without a value");
    const char first = text[0];
    if (first == '\'' || first == '"') {
      if (text.size() < 2 || text.back() != first) return error("a quote is not closed, or something is behind it");
      return unquoted(text.substr(1, text.size() - 2), first);
    }
    if (std::string_view("&*!|>%@`[").find(first) != std::string_view::npos) {
      return error(fmt::format("a value that begins with {} needs quotes", first));
    }
    if (first != '{' && text.find(": ") != std::string_view::npos) {
      return error("a value with a colon in it needs quotes");
    }
    return std::string(text);
  }

  Result<std::string> unquoted(std::string_view text, char quote) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      const char c = text[i];
      const char next = i + 1 < text.size() ? text[i + 1] : '\0';
      if (quote == '\'' && c == '\'') {
        if (next != '\'') return error("a single quote inside of single quotes is written twice");
        ++i;
      } else if (quote == '"' && c == '"') {
        return error("a double quote inside of double quotes needs a backslash");
      } else if (quote == '"' && c == '\\') {
        if (next != '"' && next != '\\' && next != 'n' && next != 't' && next != '/') {
          return error("of escapes \\\" \\\\ \\/ \\n and \\t are read");
        }
        out += next == 'n' ? '\n' : next == 't' ? '\t' : next;
        ++i;
        continue;
      }
      out += c;
    }
    return out;
  }

  std::string_view rest_;
  int number_ = 0;
  bool in_list_ = false;
  std::vector<ConfigEntry> entries_;
};

// The option of a long name, with or without the "no-" of a flag.
const CLI::Option* find_option(const CLI::App& command, const std::string& name) {
  return name.starts_with("--") ? command.get_option_no_throw(name) : nullptr;
}

// Takes `--config FILE` out of the arguments. nullopt: it is not there.
Result<std::optional<std::string>> take_config(std::vector<std::string>& arguments) {
  std::optional<std::string> found;
  for (size_t i = 0; i < arguments.size() && arguments[i] != "--";) {
    const bool joined = arguments[i].starts_with("--config=");
    if (!joined && arguments[i] != "--config") {
      ++i;
      continue;
    }
    if (found) return invalid_argument("--config is given twice; one file is read");
    if (!joined && i + 1 == arguments.size()) return invalid_argument("--config needs a file");
    found = joined ? arguments[i].substr(9) : arguments[i + 1];
    const auto begin = arguments.begin() + static_cast<std::ptrdiff_t>(i);
    arguments.erase(begin, begin + (joined ? 1 : 2));
  }
  return found;
}

Result<std::string> read_file(const std::string& path) {
  if (Status status = check_file(path, FileUse::kReadOnce); !status.ok()) {
    return std::move(status).with_prefix("--config: ");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found("--config: there is no readable file \"{}\"", path);
  constexpr size_t kMost = 1 << 20;
  std::string text(kMost + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMost) return invalid_argument("--config: {} has more than {} bytes", path, kMost);
  return text;
}

// What a command line would say in its place.
Result<std::vector<std::string>> as_arguments(const CLI::App& command, const std::string& name,
                                              const ConfigEntry& entry) {
  const CLI::Option* option = find_option(command, name);
  if (option == nullptr || name == "--config") return invalid_argument("there is no argument {} here", name);
  const bool is_flag = option->get_items_expected_max() == 0;
  if (is_flag) {
    if (entry.values.size() != 1 || (entry.values[0] != "true" && entry.values[0] != "false")) {
      return invalid_argument("{} is true or false", entry.key);
    }
    const std::string opposite = name.starts_with("--no-") ? "--" + name.substr(5) : "--no-" + name.substr(2);
    if (entry.values[0] == "true") return std::vector<std::string>{name};
    if (find_option(command, opposite) != nullptr) return std::vector<std::string>{opposite};
    return std::vector<std::string>();  // of a flag that can only be left out
  }
  std::vector<std::string> out;
  for (const std::string& value : entry.values) out.push_back(name + "=" + value);
  return out;
}

}  // namespace

Result<std::vector<ConfigEntry>> parse_config_file(std::string_view text) {
  return Parser(text).run();
}

Result<std::vector<std::string>> with_config_file(const CLI::App& command, std::vector<std::string> arguments) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> path, take_config(arguments));
  if (!path) return arguments;
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_file(*path));
  auto entries = parse_config_file(text);
  if (!entries.ok()) return Status(entries.status()).with_prefix(fmt::format("--config: {}: ", *path));
  std::vector<const CLI::Option*> given;
  for (const std::string& argument : arguments) {
    if (const auto* option = find_option(command, argument.substr(0, argument.find('=')))) given.push_back(option);
  }
  std::vector<std::string> out;
  for (const ConfigEntry& entry : *entries) {
    const std::string name = in_our_spelling({"--" + entry.key}).front();
    const CLI::Option* option = find_option(command, name);
    if (option != nullptr && std::ranges::find(given, option) != given.end()) continue;
    // A model by its place goes before the others.
    if (name == "--model" && !arguments.empty() && !arguments[0].starts_with('-')) continue;
    auto from_file = as_arguments(command, name, entry);
    if (!from_file.ok()) {
      return Status(from_file.status()).with_prefix(fmt::format("--config: {}: line {}: ", *path, entry.line));
    }
    out.insert(out.end(), from_file->begin(), from_file->end());
  }
  out.insert(out.end(), arguments.begin(), arguments.end());
  return out;
}

}  // namespace quire::cli
