#include "server/api_keys.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/digest.h"

namespace quire::server {

namespace {

constexpr std::string_view kBlanks = " \t\r";
constexpr size_t kMostNameBytes = 64;

// Takes the next word off a line; empty at its end.
std::string_view next_word(std::string_view& line) {
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(kBlanks)));
  const std::string_view word = line.substr(0, line.find_first_of(kBlanks));
  line.remove_prefix(word.size());
  return word;
}

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// It becomes a label of metrics and a word in log lines.
bool well_formed_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '@';
  });
}

Status read_setting(std::string_view word, ApiKey& key) {
  const size_t equals = word.find('=');
  const std::string_view name = word.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
  if (name == "weight") {
    const auto weight = number_of<double>(value);
    if (!weight) return invalid_argument("weight must be a number");
    key.weight = *weight;
  } else if (name == "tokens-per-minute") {
    const auto tokens = number_of<int64_t>(value);
    if (!tokens || *tokens < 1) return invalid_argument("tokens-per-minute must be a whole number, 1 or more");
    key.tokens_per_minute = *tokens;
  } else {  // not quoted: it may be a piece of a key
    return invalid_argument("behind the key only weight= and tokens-per-minute= may stand");
  }
  return {};
}

Result<ApiKey> read_line(std::string_view line) {
  ApiKey key;
  key.name = next_word(line);
  key.key = next_word(line);
  if (key.key.empty()) return invalid_argument("expected NAME KEY [weight=W] [tokens-per-minute=N]");
  for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
    QUIRE_RETURN_IF_ERROR(read_setting(word, key));
  }
  return key;
}

}  // namespace

Result<std::vector<ApiKey>> parse_api_keys(std::string_view text) {
  std::vector<ApiKey> keys;
  for (int number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    const size_t first = line.find_first_not_of(kBlanks);
    if (first == std::string_view::npos || line[first] == '#') continue;
    auto key = read_line(line);
    if (!key.ok()) return Status(key.status()).with_prefix(fmt::format("line {}: ", number));
    keys.push_back(std::move(*key));
  }
  return keys;
}

Result<std::vector<ApiKey>> all_api_keys(const std::vector<std::string>& keys, const std::vector<double>& weights,
                                         const std::vector<ApiKey>& named) {
  if (!weights.empty() && weights.size() != keys.size()) {
    return invalid_argument("There are {} API keys and {} weights for them; give one a key, in the same order.",
                            keys.size(), weights.size());
  }
  std::vector<ApiKey> all;
  for (size_t i = 0; i < keys.size(); ++i) {
    all.push_back({.name = fmt::format("key-{}", i + 1), .key = keys[i], .weight = weights.empty() ? 1 : weights[i]});
  }
  all.insert(all.end(), named.begin(), named.end());
  std::set<std::string_view> names;
  std::set<std::string_view> secrets;
  for (const ApiKey& key : all) {
    if (!well_formed_name(key.name)) {
      return invalid_argument("{} is no name for an API key: letters, digits and '-_.@', at most {} of them.",
                              in_quotes(key.name), kMostNameBytes);
    }
    if (!names.insert(key.name).second) return invalid_argument("Two API keys are called {}.", key.name);
    if (key.key.empty()) return invalid_argument("The API key {} is empty.", key.name);
    if (!secrets.insert(key.key).second) return invalid_argument("The API key {} is there twice.", key.name);
    if (!(key.weight >= 1e-3 && key.weight <= 1e6)) {
      return invalid_argument("The weight of the API key {} is {}; it must be from 0.001 to 1000000.", key.name,
                              key.weight);
    }
    if (key.tokens_per_minute < 0) {
      return invalid_argument("The API key {} may use {} tokens a minute; it must be 0 (no bound) or more.", key.name,
                              key.tokens_per_minute);
    }
  }
  return all;
}

std::vector<std::string> lasting_names(const std::vector<std::string>& keys, std::string_view purpose) {
  std::vector<std::string> names;
  for (const std::string& key : keys)
    names.push_back(hex(sha256(fmt::format("quire {}: {}", purpose, key))).substr(0, 32));
  return names;
}

}  // namespace quire::server
