// Calls whose arguments are elements. What a parameter's text means is in the function's schema: a string is taken as
// it stands, anything else is JSON.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/parse_json.h"
#include "grammar/answer_parsers.h"
#include "grammar/schema.h"
#include "grammar/tool_formats.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

constexpr std::string_view kBlank = " \n\t\r";

// One line end at each side is the format's.
std::string_view without_line_ends(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

bool is_only_string(const json::value& schema) {
  const auto* object = schema.if_object();
  const json::value* type = object == nullptr ? nullptr : object->if_contains("type");
  return type != nullptr && type->is_string() && type->get_string() == "string";
}

class XmlCallParser final : public AnswerParser {
 public:
  XmlCallParser(const AnswerReading& reading, const XmlCallFormat& format)
      : reading_(reading), format_(format), writer_(reading) {}

  void push(std::string_view text, AnswerPiece& out) override {
    held_ += text;
    while (step(out)) {
    }
  }

  void finish(AnswerPiece& out) override {
    if (state_ == State::kText || (state_ == State::kOpen && !any_)) {
      text_.say((state_ == State::kOpen ? std::string(format_.open) + around_ : std::string()) + held_, out);
    } else if (state_ == State::kName) {
      if (!any_) text_.say(std::string(format_.open) + around_ + std::string(format_.call) + held_, out);
    } else if (state_ != State::kOpen) {  // cut within a call: the parameters that are whole
      writer_.arguments(first_ ? "{}" : "}", out);
    }
    held_.clear();
  }

 private:
  enum class State : uint8_t {
    kText,   // before calls
    kOpen,   // behind the open mark: a call or the close mark
    kName,   // in a function's name
    kCall,   // in a call: a parameter or the end
    kKey,    // in a parameter's name
    kGap,    // before its value
    kValue,  // in its value
  };

  // Takes something from the front of what is held. False: more must come first.
  bool step(AnswerPiece& out) {
    switch (state_) {
      case State::kText:
        return plain(out);
      case State::kOpen:
        return opened(out);
      case State::kName:
        return name(out);
      case State::kCall:
        return inside(out);
      case State::kKey:
        return until(format_.key_end, key_, format_.value.empty() ? State::kValue : State::kGap);
      case State::kGap: {
        std::string ignored;
        return until(format_.value, ignored, State::kValue);
      }
      case State::kValue:
        return value(out);
    }
    return false;
  }

  void take(size_t count) {
    held_.erase(0, count);
    looked_ = 0;
  }

  // Up to the mark into `target`. What was looked at before is not looked at again.
  bool until(std::string_view mark, std::string& target, State next) {
    const size_t from = looked_ > mark.size() ? looked_ - mark.size() : 0;
    const size_t found = held_.find(mark, from);
    if (found == std::string::npos) {
      looked_ = held_.size();
      return false;
    }
    target.assign(held_, 0, found);
    take(found + mark.size());
    state_ = next;
    return true;
  }

  bool plain(AnswerPiece& out) {
    size_t which = 0;
    const size_t found = find_mark(held_, {format_.open}, which);
    const size_t length = found == std::string::npos ? held_.size() - held_mark(held_, {format_.open}) : found;
    const std::string_view said = std::string_view(held_).substr(0, length);
    text_.say(said, out);
    take(found == std::string::npos ? length : found + format_.open.size());
    if (found == std::string::npos) return false;
    state_ = State::kOpen;
    any_ = false;
    around_.clear();
    return true;
  }

  // Whether `mark` stands in front, whitespace aside. nullopt: it may, if more comes.
  std::optional<bool> in_front(std::string_view mark) const {
    const size_t start = held_.find_first_not_of(kBlank);
    if (start == std::string::npos) return std::nullopt;
    const std::string_view found = std::string_view(held_).substr(start);
    if (found.starts_with(mark)) return true;
    if (mark.starts_with(found)) return std::nullopt;
    return false;
  }

  void take_mark(std::string_view mark) { take(held_.find_first_not_of(kBlank) + mark.size()); }

  bool opened(AnswerPiece& out) {
    const auto close = in_front(format_.close);
    if (!close) return false;
    if (*close) {
      take_mark(format_.close);
      if (!any_) text_.say(std::string(format_.open) + around_ + std::string(format_.close), out);
      state_ = State::kText;
      return true;
    }
    if (format_.call.empty()) {
      if (any_) return drop_one();
      state_ = State::kName;
      return true;
    }
    const auto call = in_front(format_.call);
    if (!call) return false;
    if (!*call && !format_.before_call.empty()) {
      const auto around = take_around();
      if (!around || *around) return around.has_value();
    }
    if (!*call) return any_ ? drop_one() : back_to_text(out);
    take_mark(format_.call);
    state_ = State::kName;
    return true;
  }

  // Takes a mark that may stand around calls. nullopt: more must come; false: there is none.
  std::optional<bool> take_around() {
    for (const std::string_view mark : {kStepCall, std::string_view("function"), kStepSeparator, kStepCallEnd}) {
      const auto found = in_front(mark);
      if (!found) return std::nullopt;
      if (!*found) continue;
      const size_t length = held_.find_first_not_of(kBlank) + mark.size();
      if (!any_) around_ += held_.substr(0, length);
      take(length);
      return true;
    }
    return false;
  }

  // What is no part of a call, up to where a mark may begin.
  bool drop_one() {
    const size_t next = held_.find('<', held_.find_first_not_of(kBlank) + 1);
    take(std::min(next, held_.size()));
    return true;
  }

  // The mark was no call's.
  bool back_to_text(AnswerPiece& out) {
    text_.say(format_.open, out);
    text_.say(std::exchange(around_, {}), out);
    state_ = State::kText;
    return true;
  }

  bool name(AnswerPiece& out) {
    if (!format_.call.empty()) {
      std::string name;
      if (!until(format_.call_named, name, State::kCall)) return false;
      begin(name, out);
      return true;
    }
    const size_t start = held_.find_first_not_of(kBlank);
    if (start == std::string::npos) return false;
    const size_t end = held_.find_first_of("\n<", start);
    if (end == std::string::npos) return false;
    const std::string found = held_.substr(start, held_.find_last_not_of(kBlank, end - 1) + 1 - start);
    take(end);
    state_ = State::kCall;
    begin(found, out);
    return true;
  }

  void begin(std::string_view name, AnswerPiece& out) {
    any_ = true;
    first_ = true;
    function_ = nullptr;
    for (const ToolFunction& function : reading_.functions) {
      if (function.name == name) function_ = &function;
    }
    writer_.begin(name, out);
  }

  bool inside(AnswerPiece& out) {
    const auto key = in_front(format_.key);
    if (key && *key) {
      take_mark(format_.key);
      state_ = State::kKey;
      return true;
    }
    const std::string_view mark = format_.call_end.empty() ? format_.close : format_.call_end;
    const auto end = in_front(mark);
    if (!key || !end) return false;
    if (!*end) return drop_one();
    take_mark(mark);
    writer_.arguments(first_ ? "{}" : "}", out);
    state_ = format_.call_end.empty() ? State::kText : State::kOpen;
    return true;
  }

  bool value(AnswerPiece& out) {
    std::string text;
    if (!until(format_.value_end, text, State::kCall)) return false;
    std::string piece = first_ ? "{" : ", ";
    first_ = false;
    piece += json::serialize(json::value(trimmed(key_)));
    piece += ": ";
    piece += as_json(text);
    writer_.arguments(piece, out);
    return true;
  }

  static std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(kBlank);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(kBlank) + 1 - first);
  }

  // One of the values that the schema lists, whitespace aside; nullptr: it lists none such.
  static const json::value* listed(const json::value& schema, std::string_view text) {
    const auto* object = schema.if_object();
    if (object == nullptr) return nullptr;
    const auto is = [&](const json::value& value) {
      if (value.is_string()) return value.get_string() == trimmed(text);
      boost::system::error_code error;
      return parse_json(text, error) == value && !error;
    };
    if (const json::value* value = object->if_contains("const")) return is(*value) ? value : nullptr;
    const json::value* values = object->if_contains("enum");
    if (values == nullptr || !values->is_array()) return nullptr;
    for (const json::value& value : values->get_array()) {
      if (is(value)) return &value;
    }
    return nullptr;
  }

  // Blanks at either end are a string's own, other than what ends lines and its grammar leaves out (xml_arguments).
  static std::string_view within_line(std::string_view text) {
    const size_t first = text.find_first_not_of("\n\r\t");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of("\n\r\t") + 1 - first);
  }

  // Whether line ends around a string might break what the schema says of it.
  static bool is_measured(const json::value& schema) {
    const auto* object = schema.if_object();
    if (object == nullptr) return false;
    return object->contains("minLength") || object->contains("maxLength") || object->contains("pattern") ||
           object->contains("format");
  }

  std::string as_json(std::string_view text) const {
    const json::value* schema = nullptr;
    if (function_ != nullptr && function_->parameters.is_object()) {
      const json::value* properties = function_->parameters.get_object().if_contains("properties");
      if (properties != nullptr && properties->is_object()) {
        schema = properties->get_object().if_contains(trimmed(key_));
      }
    }
    if (schema != nullptr) {
      if (const json::value* value = listed(*schema, text)) return json::serialize(*value);
    }
    text = schema != nullptr && is_measured(*schema) ? within_line(text) : without_line_ends(text);
    if (schema == nullptr || !is_only_string(*schema)) {
      boost::system::error_code error;
      const json::value value = parse_json(text, error);
      // "5" of a parameter that may be a string or a number is the number, as JSON reads it.
      if (!error) return json_text(value);
    }
    return json::serialize(json::value(text));
  }

  const AnswerReading& reading_;
  const XmlCallFormat format_;
  CallWriter writer_;
  TextBesideCalls text_{writer_};
  State state_ = State::kText;
  std::string held_;
  size_t looked_ = 0;   // of held_, for the mark that is looked for
  std::string around_;  // marks behind the open mark, while no call has come
  std::string key_;
  const ToolFunction* function_ = nullptr;
  bool any_ = false;   // a call since the open mark
  bool first_ = true;  // no parameter of this call yet
};

}  // namespace

std::unique_ptr<AnswerParser> make_xml_call_parser(const AnswerReading& reading) {
  return std::make_unique<XmlCallParser>(reading, *format_in(kXmlCallFormats, reading.tools));
}

}  // namespace quire::grammar
