// A JSON object into a struct of ours: a table says which name goes where.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "types/engine_choices.h"
#include "types/token_set.h"

namespace quire::c_api {

// "the number 1.5", "a string", ...: what was found.
std::string describe(const boost::json::value& value);
// An object of bounded depth. Errors: invalid_argument, beginning with `what`.
Result<boost::json::object> parse_object(std::string_view text, std::string_view what);

// Each puts a JSON value where it belongs. Errors: invalid_argument: another type was expected, or it does not fit.
Status read_value(const boost::json::value& value, bool& out);
Status read_value(const boost::json::value& value, int32_t& out);
Status read_value(const boost::json::value& value, int64_t& out);
Status read_value(const boost::json::value& value, uint64_t& out);  // of a negative number the same 64 bits
Status read_value(const boost::json::value& value, float& out);
Status read_value(const boost::json::value& value, double& out);
Status read_value(const boost::json::value& value, std::string& out);
Status read_value(const boost::json::value& value, std::vector<std::string>& out);  // a string is a list of one
Status read_value(const boost::json::value& value, TokenSet& out);

template <typename T>
Status read_value(const boost::json::value& value, std::optional<T>& out) {
  return read_value(value, out.emplace());
}

// What is chosen by a word.
template <typename Choice>
requires std::is_enum_v<Choice> || std::is_same_v<Choice, DeviceChoice> Status
read_value(const boost::json::value& value, Choice& out) {
  std::string word;
  QUIRE_RETURN_IF_ERROR(read_value(value, word));
  QUIRE_ASSIGN_OR_RETURN(out, parse_choice<Choice>(word));
  return {};
}

template <typename Record>
struct Field {
  std::string_view name;
  Status (*read)(const boost::json::value& value, Record& record);
};

template <auto Member, typename Record>
Status read_member(const boost::json::value& value, Record& record) {
  return read_value(value, record.*Member);
}

// Of `object` every member; null is as if absent, or for "max_tokens" and the like: no bound. Errors: invalid_argument
// with param() for the first that is unknown or does not fit.
template <typename Record, size_t kCount>
Status read_record(const boost::json::object& object, const Field<Record> (&fields)[kCount], std::string_view what,
                   Record& record) {
  for (const auto& [key, value] : object) {
    const Field<Record>* found = nullptr;
    for (const Field<Record>& field : fields) {
      if (field.name == std::string_view(key)) found = &field;
    }
    const std::string name(key);
    if (found == nullptr) {
      return invalid_argument("there is no {} of the name \"{}\"", what, name.substr(0, 64)).with_param(name);
    }
    if (value.is_null()) continue;
    Status status = found->read(value, record);
    if (status.ok()) continue;
    // What an object's own check says may begin with the object's name.
    if (!status.message().starts_with(name + ": ")) status = std::move(status).with_prefix(name + ": ");
    return std::move(status).with_param(name);
  }
  return {};
}

}  // namespace quire::c_api
