#include "server/refused_fields.h"

#include "server/json_fields.h"

namespace quire::server {
namespace json = boost::json;

bool is_falsy(const json::value& v) {
  switch (v.kind()) {
    case json::kind::null:
      return true;
    case json::kind::bool_:
      return !v.get_bool();
    case json::kind::int64:
      return v.get_int64() == 0;
    case json::kind::uint64:
      return false;  // too large for int64
    case json::kind::double_:
      return v.get_double() == 0;
    case json::kind::string:
      return v.get_string().empty();
    case json::kind::array:
      return v.get_array().empty();
    case json::kind::object:
      return v.get_object().empty();
  }
  return false;
}
bool is_null(const json::value& v) {
  return v.is_null();
}
bool is_one(const json::value& v) {
  return v.is_null() || as_integer(v) == 1;
}

Status check_refused(const json::object& body, std::span<const RefusedField> fields) {
  for (const RefusedField& field : fields) {
    const json::value* value = body.if_contains(field.name);
    if (value == nullptr || field.harmless(*value)) continue;
    return invalid_argument("{} is not supported: {}. Leave it out.", field.name, field.reason).with_param(field.name);
  }
  return {};
}

}  // namespace quire::server
