#include "base/parse_json.h"

#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include <boost/json/basic_parser_impl.hpp>

namespace quire {
namespace json = boost::json;
using boost::system::error_code;

namespace {

enum class JsonFault { kManyMembers = 1, kCollidingNames };

class JsonFaults final : public std::error_category {
 public:
  const char* name() const noexcept override { return "quire.json"; }
  std::string message(int fault) const override {
    if (fault == static_cast<int>(JsonFault::kManyMembers)) {
      return "an object has more than " + std::to_string(kMostJsonMembers) + " members";
    }
    return "the names of an object's members collide, or are the same many times over";
  }
};

error_code fault(JsonFault which) {
  static const JsonFaults faults;
  return std::error_code(static_cast<int>(which), faults);
}

// Names one behind the other, each with its end.
struct NameSpan {
  const std::string& bytes;
  size_t begin;
  const size_t* ends;
  size_t count;
};

// Whether an object's table stays one of short chains. The table's hash begins at its own address, of which the last
// byte matters most: names of one length that meet in the table at one address meet at each other that ends in the
// same byte. As addresses are multiples of 16, that leaves as many cases.
bool spreads(const NameSpan& names, std::vector<uint32_t>& loads) {
  constexpr size_t kFew = 32;              // or all in one chain
  constexpr size_t kMostComparisons = 16;  // a name; half of one is usual
  constexpr size_t kAlignment = 16;
  if (names.count <= kFew) return true;
  for (size_t salt = 0; salt < 256; salt += kAlignment) {
    loads.assign(names.count, 0);
    size_t comparisons = 0;
    size_t begin = names.begin;
    for (size_t i = 0; i < names.count; ++i) {
      const char* bytes = names.bytes.data();
      comparisons += loads[json::detail::digest(bytes + begin, bytes + names.ends[i], salt) % names.count]++;
      begin = names.ends[i];
    }
    if (comparisons > kMostComparisons * names.count) return false;
  }
  return true;
}

// Builds the value on a stack, and looks at each object's names before its table is made.
class GuardedHandler {
 public:
  static constexpr size_t max_object_size = json::object::max_size();
  static constexpr size_t max_array_size = json::array::max_size();
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();

  GuardedHandler() { stack_.reset(); }

  json::value release() { return stack_.release(); }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_array_begin(error_code&) { return true; }
  bool on_array_end(size_t count, error_code&) {
    stack_.push_array(count);
    return true;
  }
  bool on_object_begin(error_code&) {
    objects_.push_back({names_.size(), ends_.size()});
    return true;
  }
  bool on_object_end(size_t count, error_code& error) {
    const OpenObject object = objects_.back();
    objects_.pop_back();
    if (!spreads({names_, object.names_begin, ends_.data() + object.ends_begin, count}, loads_)) {
      error = fault(JsonFault::kCollidingNames);
      return false;
    }
    names_.resize(object.names_begin);
    ends_.resize(object.ends_begin);
    stack_.push_object(count);
    return true;
  }
  bool on_key_part(json::string_view part, size_t, error_code&) {
    names_.append(part.data(), part.size());
    stack_.push_chars(part);
    return true;
  }
  bool on_key(json::string_view part, size_t, error_code& error) {
    names_.append(part.data(), part.size());
    ends_.push_back(names_.size());
    if (ends_.size() - objects_.back().ends_begin > kMostJsonMembers) {
      error = fault(JsonFault::kManyMembers);
      return false;
    }
    stack_.push_key(part);
    return true;
  }
  bool on_string_part(json::string_view part, size_t, error_code&) {
    stack_.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, size_t, error_code&) {
    stack_.push_string(part);
    return true;
  }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t number, json::string_view, error_code&) {
    stack_.push_int64(number);
    return true;
  }
  bool on_uint64(uint64_t number, json::string_view, error_code&) {
    stack_.push_uint64(number);
    return true;
  }
  bool on_double(double number, json::string_view, error_code&) {
    stack_.push_double(number);
    return true;
  }
  bool on_bool(bool value, error_code&) {
    stack_.push_bool(value);
    return true;
  }
  bool on_null(error_code&) {
    stack_.push_null();
    return true;
  }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  struct OpenObject {
    size_t names_begin, ends_begin;
  };

  json::value_stack stack_;
  // Of the objects that are open, the innermost last.
  std::vector<OpenObject> objects_;
  std::string names_;
  std::vector<size_t> ends_;
  std::vector<uint32_t> loads_;
};

}  // namespace

json::value parse_json(std::string_view text, error_code& error, const JsonLimits& limits, size_t* used) {
  json::parse_options options;
  options.max_depth = limits.max_depth;
  json::basic_parser<GuardedHandler> parser(options);
  const size_t taken = parser.write_some(/*more=*/false, text.data(), text.size(), error);
  if (used != nullptr) *used = taken;
  if (!error && taken < text.size()) error = json::error::extra_data;
  return error ? json::value() : parser.handler().release();
}

}  // namespace quire
