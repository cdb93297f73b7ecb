// Reads the fields of a request's JSON object by name, with their types checked. The first error stays; what is read
// after it is as if absent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/status.h"

namespace quire::server {

// Levels of what this server has written itself, in which a request may stand.
inline constexpr size_t kMaxAnswerDepth = 128;

// A body of bounded depth, valid UTF-8, whose value is an object. Errors: invalid_argument, saying where.
Result<boost::json::object> parse_json_object(std::string_view body);

class JsonFields {
 public:
  // `object` must outlive it. `prefix` goes before the names in errors: "stream_options.".
  explicit JsonFields(const boost::json::object& object, std::string prefix = "")
      : object_(object), prefix_(std::move(prefix)) {}

  // Absent and null are the same: nullopt or nullptr. true is not a number, "1" is not one either; 2.0 is an integer.
  std::optional<bool> boolean(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most);
  std::optional<float> number(std::string_view name);  // finite
  std::optional<std::string> string(std::string_view name);
  const boost::json::array* array(std::string_view name);
  const boost::json::object* object(std::string_view name);
  // Whatever it is, null included; nullptr when absent.
  const boost::json::value* any(std::string_view name) const;

  void fail(std::string_view name, std::string message);
  const Status& status() const { return status_; }

 private:
  const boost::json::value* find(std::string_view name) const;
  void fail_type(std::string_view name, std::string_view expected, const boost::json::value& found);

  const boost::json::object& object_;
  std::string prefix_;
  Status status_;
};

// "a string", "null", "the number 1.5": what was found, for an error message.
std::string describe(const boost::json::value& value);
// An integer of any JSON spelling that has no fraction; nullopt otherwise or when it does not fit.
std::optional<int64_t> as_integer(const boost::json::value& value);
// A finite number that a float holds.
std::optional<float> as_float(const boost::json::value& value);
// Errors: invalid_argument: it is not there or no string.
Result<std::string> string_of(const boost::json::object& object, const char* field);

}  // namespace quire::server
