// Fields of one object of a configuration, with the path that messages name them by.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <boost/json.hpp>

#include "base/status.h"
#include "checkpoint/json_file.h"

namespace quire::checkpoint {

class ConfigFields {
 public:
  ConfigFields(const boost::json::object& object, std::string path) : object_(object), path_(std::move(path)) {}

  // nullptr: missing or null.
  const boost::json::value* find(std::string_view key) const {
    const boost::json::value* value = object_.if_contains(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  std::string_view text(std::string_view key, std::string_view otherwise = "") const {
    const boost::json::value* value = find(key);
    return value != nullptr && value->is_string() ? std::string_view(value->get_string()) : otherwise;
  }
  bool flag(std::string_view key, bool otherwise) const {
    const boost::json::value* value = find(key);
    return value != nullptr && value->is_bool() ? value->get_bool() : otherwise;
  }
  std::optional<int64_t> whole(std::string_view key) const {
    const boost::json::value* value = find(key);
    return value != nullptr && value->is_int64() ? std::optional(value->get_int64()) : std::nullopt;
  }
  // Errors: data_loss where there is another value.
  Result<const boost::json::object*> object(std::string_view key) const {
    const boost::json::value* value = find(key);
    if (value == nullptr) return nullptr;
    if (value->is_object()) return &value->get_object();
    return unfit(key, "an object");
  }
  Status unfit(std::string_view key, std::string_view expected) const {
    const boost::json::value* value = object_.if_contains(key);
    return data_loss("{}.{} is {}; expected {}", path_, key, value == nullptr ? "missing" : described(*value),
                     expected);
  }
  Status refuse(std::string_view key, std::string_view supported) const {
    const boost::json::value* value = object_.if_contains(key);
    return unimplemented("{}.{} is {}; supported: {}", path_, key, value == nullptr ? "missing" : described(*value),
                         supported);
  }
  const std::string& path() const { return path_; }
  const boost::json::object& all() const { return object_; }

 private:
  const boost::json::object& object_;
  std::string path_;
};

}  // namespace quire::checkpoint
