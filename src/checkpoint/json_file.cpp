#include "checkpoint/json_file.h"

#include <cstdint>
#include <limits>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <boost/json/basic_parser_impl.hpp>

#include "checkpoint/mapped_file.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

// Builds the tree on Boost.JSON's value_stack. Boost's own parser keeps the last of two equal keys in silence, hence a
// handler that remembers the keys of every object still open.
class TreeHandler {
 public:
  static constexpr size_t max_object_size = json::object::max_size();
  static constexpr size_t max_array_size = json::array::max_size();
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();

  explicit TreeHandler(const JsonLimits& limits) : limits_(limits) { stack_.reset(); }

  const std::string& failure() const { return failure_; }
  json::value release() { return stack_.release(); }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_object_begin(json::error_code&) {
    open_keys_.emplace_back();
    return true;
  }
  bool on_object_end(size_t n, json::error_code& error) {
    open_keys_.pop_back();
    stack_.push_object(n);
    return counted(error);
  }
  bool on_array_begin(json::error_code&) { return true; }
  bool on_array_end(size_t n, json::error_code& error) {
    stack_.push_array(n);
    return counted(error);
  }
  bool on_key_part(json::string_view part, size_t, json::error_code&) {
    key_.append(part.data(), part.size());
    stack_.push_chars(part);
    return true;
  }
  bool on_key(json::string_view part, size_t, json::error_code& error) {
    key_.append(part.data(), part.size());
    stack_.push_key(part);
    const std::string key = std::exchange(key_, {});
    if (limits_.duplicate_keys == DuplicateKeys::kRefuse && !open_keys_.back().insert(key).second) {
      return fail(fmt::format("the key {} stands twice in one object", in_quotes(key)), error);
    }
    return true;
  }
  bool on_string_part(json::string_view part, size_t, json::error_code&) {
    stack_.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, size_t, json::error_code& error) {
    stack_.push_string(part);
    return counted(error);
  }
  bool on_number_part(json::string_view, json::error_code&) { return true; }
  bool on_int64(int64_t number, json::string_view, json::error_code& error) {
    stack_.push_int64(number);
    return counted(error);
  }
  bool on_uint64(uint64_t number, json::string_view, json::error_code& error) {
    stack_.push_uint64(number);
    return counted(error);
  }
  bool on_double(double number, json::string_view, json::error_code& error) {
    stack_.push_double(number);
    return counted(error);
  }
  bool on_bool(bool value, json::error_code& error) {
    stack_.push_bool(value);
    return counted(error);
  }
  bool on_null(json::error_code& error) {
    stack_.push_null();
    return counted(error);
  }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  bool fail(std::string why, json::error_code& error) {
    failure_ = std::move(why);
    error = json::make_error_code(json::error::syntax);
    return false;
  }
  bool counted(json::error_code& error) {
    if (++num_values_ <= limits_.most_values) return true;
    return fail(fmt::format("more than {} values", limits_.most_values), error);
  }

  JsonLimits limits_;
  json::value_stack stack_;
  std::vector<std::unordered_set<std::string>> open_keys_;
  std::string key_;
  size_t num_values_ = 0;
  std::string failure_;
};

Result<json::value> parse(std::string_view text, const JsonLimits& limits) {
  json::parse_options options;
  options.max_depth = limits.most_depth;
  json::basic_parser<TreeHandler> parser(options, limits);
  json::error_code error;
  const size_t used = parser.write_some(/*more=*/false, text.data(), text.size(), error);
  if (error) {
    const std::string& failure = parser.handler().failure();
    return data_loss("not valid JSON at byte {}: {}", used, failure.empty() ? error.message() : failure);
  }
  const size_t rest = text.find_first_not_of(" \t\r\n", used);
  if (rest != std::string_view::npos) {
    return data_loss("not valid JSON at byte {}: text after the end of the value", rest);
  }
  return parser.handler().release();
}

}  // namespace

std::string described(const json::value& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (value.is_string()) return fmt::format("the string {}", in_quotes(value.get_string()));
  return json::serialize(value);
}

Result<json::object> parse_json_object(std::string_view text, const JsonLimits& limits) {
  try {
    QUIRE_ASSIGN_OR_RETURN(json::value value, parse(text, limits));
    if (!value.is_object()) return data_loss("not a JSON object, found {}", described(value));
    return std::move(value.get_object());
  } catch (const std::exception& exception) {  // no memory, a string longer than Boost.JSON holds
    return data_loss("the JSON text cannot be held: {}", exception.what());
  }
}

Result<json::object> read_json_object(const std::filesystem::path& path, const JsonLimits& limits) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMostBytes));
  Result<json::object> object = parse_json_object(text, limits);
  if (!object.ok()) return object.status().with_prefix(path.string() + ": ");
  return object;
}

}  // namespace quire::checkpoint
