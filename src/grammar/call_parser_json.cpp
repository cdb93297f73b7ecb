// Calls whose arguments are JSON: what stands between the objects says which function is called, where the objects do
// not say it themselves.
#include <string>
#include <utility>

#include "grammar/answer_parsers.h"
#include "grammar/tool_formats.h"

namespace quire::grammar {
namespace {

std::string_view trimmed(std::string_view text, std::string_view what = " \n\t\r[],;") {
  const size_t first = text.find_first_not_of(what);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(what) + 1 - first);
}

std::string_view up_to(std::string_view text, std::string_view mark) {
  return text.substr(0, text.find(mark));
}

std::string_view behind(std::string_view text, std::string_view mark) {
  const size_t found = text.find(mark);
  return found == std::string_view::npos ? std::string_view() : text.substr(found + mark.size());
}

// The function that `header`, what stands in front of an object, calls; empty: the object says it.
std::string name_in(ToolFormat format, std::string_view header) {
  switch (format) {
    case ToolFormat::kMistral: {
      const size_t mark = header.rfind("[TOOL_CALLS]");  // stands before each call
      if (mark != std::string_view::npos) header.remove_prefix(mark + std::string_view("[TOOL_CALLS]").size());
      return std::string(trimmed(up_to(up_to(header, "[ARGS]"), "[CALL_ID]")));
    }
    case ToolFormat::kKimiK2: {
      std::string_view name = trimmed(up_to(behind(header, kKimiCall), kKimiArguments));
      if (name.starts_with("functions.")) name.remove_prefix(std::string_view("functions.").size());
      return std::string(name.substr(0, name.rfind(':')));
    }
    case ToolFormat::kDeepseekV3:
    case ToolFormat::kDeepseekV31: {
      const std::string_view call = behind(header, kDeepseekCall);
      const std::string_view name = trimmed(up_to(behind(call, kDeepseekSeparator), "\n"));
      return std::string(name.empty() ? trimmed(up_to(call, kDeepseekSeparator)) : name);
    }
    default:
      return {};
  }
}

class JsonCallParser final : public AnswerParser {
 public:
  JsonCallParser(const AnswerReading& reading, const JsonCallFormat& format)
      : format_(format),
        whole_(format.open.empty()),
        state_(whole_ ? State::kStart : State::kText),
        writer_(reading),
        call_(writer_, /*needs_arguments=*/whole_) {}

  void push(std::string_view text, AnswerPiece& out) override {
    held_ += text;
    size_t done = 0;
    while (done < held_.size()) {
      const State before = state_;
      const size_t taken = step(std::string_view(held_).substr(done), out);
      if (taken == 0 && state_ == before) break;  // more must come first
      done += taken;
    }
    held_.erase(0, done);
  }

  void finish(AnswerPiece& out) override {
    if (state_ == State::kCall && !call_.is_call()) {
      text_.say(opened_ + header_ + call_.text(), out);
    } else if (state_ == State::kBetween && writer_.count() == count_before_) {
      text_.say(opened_ + header_, out);
    }
    if (state_ == State::kText || state_ == State::kStart || state_ == State::kBetween) text_.say(held_text(), out);
    held_.clear();
  }

 private:
  enum class State : uint8_t {
    kStart,    // nothing but whitespace has come, of formats whose calls are the whole answer
    kText,     // before calls
    kBetween,  // behind the open mark, between the objects
    kCall,     // in an object
    kSaid,     // the answer is text, or what follows calls that were the whole of it
  };

  std::string_view held_text() const {
    return state_ == State::kBetween && writer_.count() > count_before_ ? std::string_view() : held_;
  }

  // Takes some of `text`, or changes the state.
  size_t step(std::string_view text, AnswerPiece& out) {
    switch (state_) {
      case State::kStart:
        return start(text);
      case State::kText:
        return plain(text, out);
      case State::kBetween:
        return between(text, out);
      case State::kCall:
        return call(text, out);
      case State::kSaid:
        text_.say(text, out);
        return text.size();
    }
    return 0;
  }

  size_t start(std::string_view text) {
    const size_t first = text.find_first_not_of(" \n\t\r");
    if (first == std::string_view::npos) return 0;
    const std::string_view found = text.substr(first);
    if (found.starts_with(kPythonTag)) return open(first + kPythonTag.size(), "");
    if (kPythonTag.starts_with(found)) return 0;
    if (found.front() == '{') return open(first, "");
    state_ = State::kSaid;
    return 0;
  }

  size_t open(size_t taken, std::string_view mark) {
    state_ = State::kBetween;
    opened_ = mark;
    header_.clear();
    count_before_ = writer_.count();
    return taken;
  }

  size_t plain(std::string_view text, AnswerPiece& out) {
    size_t which = 0;
    const size_t found = find_mark(text, {format_.open}, which);
    if (found != std::string_view::npos) {
      text_.say(text.substr(0, found), out);
      return open(found + format_.open.size(), format_.open);
    }
    const size_t keep = held_mark(text, {format_.open});
    text_.say(text.substr(0, text.size() - keep), out);
    return text.size() - keep;
  }

  size_t between(std::string_view text, AnswerPiece& out) {
    if (!format_.close.empty()) {
      if (text.starts_with(format_.close)) {
        if (writer_.count() == count_before_) text_.say(opened_ + header_ + std::string(format_.close), out);
        state_ = State::kText;
        return format_.close.size();
      }
      if (format_.close.starts_with(text)) return 0;
    }
    const char c = text.front();
    if (c == '{') {
      const std::string name = name_in(format_.format, header_);
      if (!name.empty() && !writer_.knows(name)) {  // of a function that there is not: text
        text_.say(opened_ + header_, out);
        state_ = whole_ ? State::kSaid : State::kText;
        return 0;
      }
      call_.start(name);
      state_ = State::kCall;
      return call(text, out);
    }
    header_ += c;
    return 1;
  }

  size_t call(std::string_view text, AnswerPiece& out) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (call_.push(text[i], out)) continue;
      if (call_.is_call()) {
        header_.clear();
        state_ = State::kBetween;
      } else {
        text_.say(opened_ + header_ + call_.text(), out);
        state_ = whole_ ? State::kSaid : State::kText;
      }
      return i + 1;
    }
    return text.size();
  }

  const JsonCallFormat format_;
  const bool whole_;
  State state_;
  CallWriter writer_;
  TextBesideCalls text_{writer_};
  JsonCall call_;
  std::string held_;
  std::string opened_;  // the mark that was found
  std::string header_;
  int32_t count_before_ = 0;
};

}  // namespace

std::unique_ptr<AnswerParser> make_json_call_parser(const AnswerReading& reading) {
  return std::make_unique<JsonCallParser>(reading, *format_in(kJsonCallFormats, reading.tools));
}

}  // namespace quire::grammar
