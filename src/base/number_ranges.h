// Lists of numbers as the kernel and taskset write them: "0-3,8".
#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

namespace quire {

struct NumberRange {
  int first = 0;
  int last = 0;  // included
};

// In the order of the text; nullopt where it is no such list, or names a number of `limit` or more. A comma at the end
// is passed over.
inline std::optional<std::vector<NumberRange>> parse_number_ranges(std::string_view text, int limit) {
  const auto number = [limit](std::string_view digits, int& value) {
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() && end == digits.data() + digits.size() && value >= 0 && value < limit;
  };
  std::vector<NumberRange> ranges;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(item.size() + 1, text.size()));
    const size_t dash = std::min(item.find('-'), item.size());
    NumberRange range;
    if (!number(item.substr(0, dash), range.first)) return std::nullopt;
    if (!number(dash == item.size() ? item : item.substr(dash + 1), range.last)) return std::nullopt;
    if (range.last < range.first) return std::nullopt;
    ranges.push_back(range);
  }
  return ranges;
}

}  // namespace quire
