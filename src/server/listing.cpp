#include "server/listing.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "server/api_error.h"
#include "server/url.h"

namespace quire::server {
namespace json = boost::json;

Result<json::object> page_of(json::array items, std::string_view query, bool newest_first) {
  constexpr size_t kMost = 100;
  size_t limit = 20;
  if (const auto text = query_value(query, "limit")) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), limit);
    if (error != std::errc() || end != text->data() + text->size() || limit < 1 || limit > kMost) {
      return invalid_argument("limit must be a number from 1 to {}, got {}.", kMost, in_quotes(*text, 40))
          .with_param("limit");
    }
  }
  if (const auto order = query_value(query, "order")) {
    if (*order != "asc" && *order != "desc") {
      return invalid_argument("order must be asc or desc, got {}.", in_quotes(*order, 40)).with_param("order");
    }
    newest_first = *order == "desc";
  }
  if (newest_first) std::reverse(items.begin(), items.end());
  auto begin = items.begin();
  if (const auto after = query_value(query, "after"); after && !after->empty()) {
    const std::string id = percent_decoded(*after);
    begin = std::find_if(items.begin(), items.end(),
                         [&](const json::value& item) { return item.at("id").as_string() == id; });
    if (begin == items.end()) {
      return invalid_argument("There is no item {} to list after.", in_quotes(id)).with_param("after");
    }
    ++begin;
  }
  const auto left = static_cast<size_t>(items.end() - begin);
  json::array data(begin, begin + static_cast<std::ptrdiff_t>(std::min(left, limit)));
  json::object page{{"object", "list"}, {"first_id", nullptr}, {"last_id", nullptr}, {"has_more", left > limit}};
  if (!data.empty()) {
    page["first_id"] = data.front().at("id");
    page["last_id"] = data.back().at("id");
  }
  page["data"] = std::move(data);
  return page;
}

}  // namespace quire::server
