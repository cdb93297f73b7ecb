#include "base/parse_json.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <boost/json/basic_parser_impl.hpp>

namespace quire {
namespace json = boost::json;
using boost::system::error_code;

namespace {

enum class JsonFault { kManyMembers = 1, kCollidingNames, kManyValues };

class JsonFaults final : public std::error_category {
 public:
  const char* name() const noexcept override { return "quire.json"; }
  std::string message(int fault) const override {
    if (fault == static_cast<int>(JsonFault::kManyMembers)) {
      return "an object has more than " + std::to_string(kMostJsonMembers) + " members";
    }
    if (fault == static_cast<int>(JsonFault::kManyValues)) return "there are too many values";
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

// Builds the value on a stack, and looks at each object's names before its table is made. Once there are more values
// than may be, it only counts.
class GuardedHandler {
 public:
  static constexpr size_t max_object_size = json::object::max_size();
  static constexpr size_t max_array_size = json::array::max_size();
  static constexpr size_t max_key_size = json::string::max_size();
  static constexpr size_t max_string_size = json::string::max_size();

  GuardedHandler(const JsonLimits& limits, JsonReport& report) : limits_(limits), report_(report) { stack_.reset(); }

  json::value release() { return stack_.release(); }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code& error) {
    if (keeps()) return true;
    report_.excess =
        num_values_ > limits_.max_values
            ? fmt::format("the JSON has {} values that are no numbers; at most {} are taken", num_values_,
                          limits_.max_values)
            : fmt::format("the JSON has {} numbers; at most {} are taken", num_numbers_, limits_.max_numbers);
    error = fault(JsonFault::kManyValues);
    return false;
  }
  bool on_array_begin(error_code&) {
    note_plain();
    open_.push_back({.is_list = true});
    return true;
  }
  bool on_array_end(size_t count, error_code& error) {
    if (is_excessive()) return has_too_many("entries", count, limits_.max_items, JsonFault::kManyValues, error);
    open_.pop_back();
    if (keeps()) stack_.push_array(count);
    return true;
  }
  bool on_object_begin(error_code&) {
    note_object();
    open_.push_back({.names_begin = names_.size(), .ends_begin = ends_.size()});
    return true;
  }
  bool on_object_end(size_t count, error_code& error) {
    if (is_excessive()) return has_too_many("members", count, kMostJsonMembers, JsonFault::kManyMembers, error);
    const OpenValue object = open_.back();
    open_.pop_back();
    if (!keeps()) return true;
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
    if (!keeps()) return true;
    names_.append(part.data(), part.size());
    stack_.push_chars(part);
    return true;
  }
  bool on_key(json::string_view part, size_t, error_code&) {
    if (!keeps()) return true;
    names_.append(part.data(), part.size());
    ends_.push_back(names_.size());
    stack_.push_key(part);
    if (ends_.size() - open_.back().ends_begin > kMostJsonMembers) counts_until_ = open_.size();
    return true;
  }
  bool on_string_part(json::string_view part, size_t, error_code&) {
    if (keeps()) stack_.push_chars(part);
    return true;
  }
  bool on_string(json::string_view part, size_t, error_code&) {
    if (note_plain()) stack_.push_string(part);
    return true;
  }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t number, json::string_view, error_code&) {
    if (note_number()) stack_.push_int64(number);
    return true;
  }
  bool on_uint64(uint64_t number, json::string_view, error_code&) {
    if (note_number()) stack_.push_uint64(number);
    return true;
  }
  bool on_double(double number, json::string_view, error_code&) {
    if (note_number()) stack_.push_double(number);
    return true;
  }
  bool on_bool(bool value, error_code&) {
    if (note_plain()) stack_.push_bool(value);
    return true;
  }
  bool on_null(error_code&) {
    if (note_plain()) stack_.push_null();
    return true;
  }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  struct OpenValue {
    bool is_list = false;
    size_t num_entries = 0, num_plain = 0;   // of a list
    size_t names_begin = 0, ends_begin = 0;  // of an object
  };
  static constexpr size_t kKeeps = 0, kToTheEnd = std::numeric_limits<size_t>::max();

  bool keeps() const { return counts_until_ == kKeeps; }
  // Whether the innermost open value is the one that has too many entries.
  bool is_excessive() const { return open_.size() == counts_until_; }

  // All: whether what comes is to be kept. What is made of objects takes far more than lists of texts or token ids.
  bool note_object() {
    count_value();
    if (open_.empty() || !open_.back().is_list) return keeps();
    OpenValue& list = open_.back();
    if (keeps() && ++list.num_entries - list.num_plain > limits_.max_items) counts_until_ = open_.size();
    return keeps();
  }
  bool note_plain() {
    count_value();
    count_plain();
    return keeps();
  }
  bool note_number() {
    if (++num_numbers_ > limits_.max_numbers && keeps()) counts_until_ = kToTheEnd;
    count_plain();
    return keeps();
  }

  void count_value() {
    if (++num_values_ > limits_.max_values && keeps()) counts_until_ = kToTheEnd;
  }
  void count_plain() {
    if (!keeps() || open_.empty() || !open_.back().is_list) return;
    ++open_.back().num_entries;
    ++open_.back().num_plain;
  }

  bool has_too_many(std::string_view what, size_t count, size_t most, JsonFault which, error_code& error) {
    report_.excess = fmt::format("{} has {} {}; at most {} are taken", place_of_innermost(), count, what, most);
    if (open_.size() > 1 && !open_.front().is_list) report_.member = open_name(0);
    error = fault(which);
    return false;
  }

  // Under which the object at `depth` holds the value that is open in it.
  std::string open_name(size_t depth) const {
    const OpenValue& object = open_[depth];
    const auto next = std::find_if(open_.begin() + static_cast<std::ptrdiff_t>(depth) + 1, open_.end(),
                                   [](const OpenValue& inner) { return !inner.is_list; });
    const size_t last = (next == open_.end() ? ends_.size() : next->ends_begin) - 1;  // of its names
    const size_t begin = last == object.ends_begin ? object.names_begin : ends_[last - 1];
    constexpr size_t kMostBytes = 60;  // it is the client's own
    return ends_[last] - begin <= kMostBytes ? names_.substr(begin, ends_[last] - begin) : "...";
  }

  // "messages", "messages[2].content".
  std::string place_of_innermost() const {
    std::string out;
    for (size_t i = 0; i + 1 < open_.size(); ++i) {
      const bool in_list = open_[i].is_list;
      out += in_list ? fmt::format("[{}]", open_[i].num_entries - 1) : (out.empty() ? "" : ".") + open_name(i);
    }
    return out.empty() ? "the JSON" : out;
  }

  const JsonLimits& limits_;
  JsonReport& report_;
  json::value_stack stack_;
  std::vector<OpenValue> open_;  // the innermost last
  // Of the objects that are open, the innermost last.
  std::string names_;
  std::vector<size_t> ends_;
  std::vector<uint32_t> loads_;
  size_t counts_until_ = kKeeps;  // the list at this depth ends, or kToTheEnd
  size_t num_values_ = 0;         // that are no numbers
  size_t num_numbers_ = 0;
};

}  // namespace

json::value parse_json(std::string_view text, error_code& error, const JsonLimits& limits, JsonReport* report) {
  json::parse_options options;
  options.max_depth = limits.max_depth;
  JsonReport unasked;
  json::basic_parser<GuardedHandler> parser(options, limits, report != nullptr ? *report : unasked);
  const size_t taken = parser.write_some(/*more=*/false, text.data(), text.size(), error);
  if (report != nullptr) report->used = taken;
  if (!error && taken < text.size()) error = json::error::extra_data;
  return error ? json::value() : parser.handler().release();
}

}  // namespace quire
