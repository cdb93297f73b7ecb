#include "grammar/answer_parsers.h"

#include <algorithm>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "grammar/tool_formats.h"

namespace quire::grammar {
namespace json = boost::json;

size_t find_mark(std::string_view text, std::initializer_list<std::string_view> marks, size_t& which) {
  size_t best = std::string_view::npos;
  size_t i = 0;
  for (const std::string_view mark : marks) {
    const size_t found = mark.empty() ? std::string_view::npos : text.find(mark);
    if (found < best) {
      best = found;
      which = i;
    }
    ++i;
  }
  return best;
}

size_t held_mark(std::string_view text, std::initializer_list<std::string_view> marks) {
  size_t longest = 0;
  for (const std::string_view mark : marks) {
    if (mark.empty()) continue;
    for (size_t length = std::min(text.size(), mark.size() - 1); length > longest; --length) {
      if (text.ends_with(mark.substr(0, length))) longest = length;
    }
  }
  return longest;
}

// --------------------------------------------------------------------------------------------------------------
// calls

std::string CallWriter::fresh_id(std::string_view name) const {
  if (reading_.tools == ToolFormat::kKimiK2) return fmt::format("functions.{}:{}", name, count_ - 1);
  std::random_device device;
  const uint64_t high = (uint64_t{device()} << 32) | device();
  const uint64_t low = (uint64_t{device()} << 32) | device();
  if (reading_.tools == ToolFormat::kMistral)
    return fmt::format("{:09x}", high & 0xfffffffffU);  // its templates want nine
  return fmt::format("chatcmpl-tool-{:016x}{:016x}", high, low);
}

bool CallWriter::knows(std::string_view name) const {
  return reading_.functions.empty() ||
         std::ranges::find(reading_.functions, name, &ToolFunction::name) != reading_.functions.end();
}

void TextBesideCalls::say(std::string_view text, AnswerPiece& out) {
  if (writer_.count() != num_calls_) {
    num_calls_ = writer_.count();
    behind_call_ = true;
    blank_.clear();
  }
  if (behind_call_) {
    const size_t start = std::min(text.find_first_not_of(" \n\t\r"), text.size());
    blank_ += text.substr(0, start);
    text.remove_prefix(start);
    if (text.empty()) return;
    out.content += std::exchange(blank_, {});
    behind_call_ = false;
  }
  out.content += text;
}

void CallWriter::begin(std::string_view name, AnswerPiece& out) {
  leaves_out_ = !reading_.parallel && count_ > 0;
  if (leaves_out_) return;
  ++count_;
  out.calls.push_back({count_ - 1, fresh_id(name), std::string(name), ""});
}

void CallWriter::arguments(std::string_view piece, AnswerPiece& out) {
  if (piece.empty() || leaves_out_) return;
  if (out.calls.empty() || out.calls.back().index != count_ - 1) out.calls.push_back({count_ - 1, "", "", ""});
  out.calls.back().arguments += piece;
}

void JsonCall::start(std::string_view name) {
  *this = JsonCall(*writer_, needs_arguments_);
  if (name.empty()) return;
  bare_ = true;
  key_ = name;
}

void JsonCall::emit(std::string_view piece, AnswerPiece& out) {
  if (!begun_) {
    early_ += piece;
    return;
  }
  writer_->arguments(piece, out);
}

bool JsonCall::push(char c, AnswerPiece& out) {
  if (!begun_) text_ += c;
  if (bare_ && !begun_) {
    begun_ = true;
    writer_->begin(key_, out);
  }
  const bool was_in_string = in_string_;
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    --depth_;
  }
  if (bare_) {
    emit(std::string_view(&c, 1), out);
    return depth_ > 0;
  }
  if (depth_ == 0) {  // the outermost object ends
    end_value(out);
    if (begun_ && !had_arguments_) writer_->arguments("{}", out);
    return false;
  }
  if (depth_ == 1 && !was_in_string && !in_string_) {
    if (c == ',') {
      end_value(out);
      return true;
    }
    if (c == ':' && value_ == Value::kNone) {
      behind_colon_ = true;
      value_ = key_ == "name"                                                            ? Value::kName
               : key_ == "arguments" || key_ == "parameters" || key_ == "arguments_json" ? Value::kArguments
                                                                                         : Value::kOther;
      has_arguments_ |= value_ == Value::kArguments;
      if (!name_.empty() && has_arguments_) begin(out);
      return true;
    }
  }
  if (depth_ == 1 && c == '{' && !was_in_string && value_ == Value::kNone && text_.size() <= 1) return true;
  value_character(c, out);
  return true;
}

void JsonCall::value_character(char c, AnswerPiece& out) {
  if (value_ == Value::kNone) {  // a key
    if (c == '"') {
      if (in_string_) key_.clear();
    } else if (in_string_) {
      key_ += c;
    }
    return;
  }
  if (value_ == Value::kName) {
    captured_ += c;
    return;
  }
  if (value_ != Value::kArguments) return;
  had_arguments_ = true;
  if (!in_string_ && (c == ' ' || c == '\n' || c == '\t' || c == '\r')) {
    blank_ += c;
    return;
  }
  if (std::exchange(behind_colon_, false)) {
    blank_.clear();
    as_string_ = c == '"';
  }
  if (as_string_) {
    captured_ += std::exchange(blank_, {}) + c;
    return;
  }
  emit(std::exchange(blank_, {}), out);
  emit(std::string_view(&c, 1), out);
}

void JsonCall::begin(AnswerPiece& out) {
  begun_ = true;
  writer_->begin(std::exchange(name_, {}), out);
  writer_->arguments(std::exchange(early_, {}), out);
  text_.clear();
}

void JsonCall::end_value(AnswerPiece& out) {
  blank_.clear();
  behind_colon_ = false;
  if (value_ == Value::kName) {
    boost::system::error_code error;
    const json::value name = json::parse(captured_, error);
    captured_.clear();
    if (!error && name.is_string() && !begun_ && writer_->knows(name.get_string())) {
      name_ = name.get_string();
      if (!needs_arguments_ || has_arguments_) begin(out);
    }
  } else if (value_ == Value::kArguments && as_string_) {
    boost::system::error_code error;
    const json::value text = json::parse(std::exchange(captured_, {}), error);
    if (!error && text.is_string()) emit(text.get_string(), out);
    as_string_ = false;
  }
  value_ = Value::kNone;
  key_.clear();
}

// ------------------------------------------------------------------------------------------------------------
// text and reasoning

namespace {

class TextParser final : public AnswerParser {
 public:
  void push(std::string_view text, AnswerPiece& out) override { out.content += text; }
  void finish(AnswerPiece&) override {}
};

// What is thought before what is said.
class ReasoningParser final : public AnswerParser {
 public:
  ReasoningParser(const ReasoningMarks& marks, bool begun, std::unique_ptr<AnswerParser> rest)
      : marks_(marks), state_(begun ? State::kInside : State::kBefore), rest_(std::move(rest)) {}

  void push(std::string_view text, AnswerPiece& out) override {
    if (state_ == State::kBehind) return said(text, out);
    held_ += text;
    if (state_ == State::kBefore) {
      const size_t start = held_.find_first_not_of(" \n\t\r");
      if (start == std::string::npos) return;
      const std::string_view found = std::string_view(held_).substr(start);
      if (found.starts_with(marks_.begin)) {
        held_.erase(0, start + marks_.begin.size());
        state_ = State::kInside;
      } else if (marks_.begin.starts_with(found)) {
        return;
      } else {
        state_ = State::kBehind;
        trim_ = false;
        return said(std::exchange(held_, {}), out);
      }
    }
    size_t which = 0;
    const size_t end = find_mark(held_, {marks_.end}, which);
    if (end == std::string::npos) {
      const size_t keep = held_mark(held_, {marks_.end});
      thought(std::string_view(held_).substr(0, held_.size() - keep), out);
      held_.erase(0, held_.size() - keep);
      return;
    }
    thought(std::string_view(held_).substr(0, end), out);
    const std::string rest = held_.substr(end + marks_.end.size());
    held_.clear();
    blank_.clear();
    state_ = State::kBehind;
    said(rest, out);
  }

  void finish(AnswerPiece& out) override {
    if (state_ == State::kInside) {
      thought(held_, out);
    } else if (state_ == State::kBefore) {
      rest_->push(held_, out);
    }
    held_.clear();
    rest_->finish(out);
  }
  bool in_reasoning() const override { return state_ == State::kInside; }
  bool holds_mark() const override { return !held_.empty(); }

 private:
  enum class State : uint8_t { kBefore, kInside, kBehind };

  // Without the line ends around it.
  void thought(std::string_view text, AnswerPiece& out) {
    for (const char c : text) {
      if (c == '\n' || c == ' ') {
        if (thought_anything_) blank_ += c;
        continue;
      }
      out.reasoning += std::exchange(blank_, {});
      out.reasoning += c;
      thought_anything_ = true;
    }
  }

  // Without the line ends between the two.
  void said(std::string_view text, AnswerPiece& out) {
    if (trim_) {
      const size_t start = text.find_first_not_of('\n');
      if (start == std::string_view::npos) return;
      text.remove_prefix(start);
      trim_ = false;
    }
    rest_->push(text, out);
  }

  const ReasoningMarks marks_;
  State state_;
  std::unique_ptr<AnswerParser> rest_;
  std::string held_;
  std::string blank_;
  bool thought_anything_ = false;
  bool trim_ = true;
};

std::unique_ptr<AnswerParser> make_tool_parser(const AnswerReading& reading) {
  if (!reading.reads_tools()) return std::make_unique<TextParser>();
  if (format_in(kXmlCallFormats, reading.tools) != nullptr) return make_xml_call_parser(reading);
  if (format_in(kJsonCallFormats, reading.tools) != nullptr) return make_json_call_parser(reading);
  if (reading.tools == ToolFormat::kPythonic || reading.tools == ToolFormat::kLlama4Pythonic) {
    return make_python_call_parser(reading);
  }
  if (format_in(kPythonCallFormats, reading.tools) != nullptr) return make_marked_python_call_parser(reading);
  if (reading.tools == ToolFormat::kGemma4) return make_gemma_call_parser(reading);
  return std::make_unique<TextParser>();
}

}  // namespace

std::unique_ptr<AnswerParser> make_answer_parser(const AnswerReading& reading) {
  if (reading.tools == ToolFormat::kGptOss || reading.reasoning == ReasoningFormat::kGptOss) {
    return make_channel_parser(reading);
  }
  std::unique_ptr<AnswerParser> tools = make_tool_parser(reading);
  const ReasoningMarks* marks = format_in(kReasoningMarks, reading.reasoning);
  if (marks == nullptr) return tools;
  return std::make_unique<ReasoningParser>(*marks, reading.begun, std::move(tools));
}

}  // namespace quire::grammar
