// Calls written as Python would: [name(key=value, ...), ...], the whole answer or between marks. Values are literals;
// nothing is ever evaluated. JSON's true, false and null are taken beside Python's.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "grammar/answer_parsers.h"
#include "grammar/tool_formats.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  using Call = std::pair<std::string, json::object>;  // a name with its arguments

  // "[f(a=1), g()]", all of the text.
  std::optional<std::vector<Call>> calls() {
    std::vector<Call> out;
    if (!skip('[')) return std::nullopt;
    while (!skip(']')) {
      auto one = call();
      if (!one) return std::nullopt;
      out.push_back(std::move(*one));
      if (!skip(',') && peek() != ']') return std::nullopt;
    }
    blanks();
    if (at_ != text_.size() || out.empty()) return std::nullopt;
    return out;
  }

  // "f(a=1)\ng()", all of the text.
  std::optional<std::vector<Call>> calls_one_behind_the_other() {
    std::vector<Call> out;
    while (peek() != '\0') {
      auto one = call();
      if (!one) return std::nullopt;
      out.push_back(std::move(*one));
    }
    if (at_ != text_.size() || out.empty()) return std::nullopt;
    return out;
  }

 private:
  static constexpr int kMostDepth = 64;

  std::optional<Call> call() {
    const std::string name = word();
    if (name.empty() || !skip('(')) return std::nullopt;
    json::object arguments;
    while (!skip(')')) {
      const std::string key = word();
      if (key.empty() || !skip('=')) return std::nullopt;
      auto value = literal(0);
      if (!value) return std::nullopt;
      arguments[key] = std::move(*value);
      if (!skip(',') && peek() != ')') return std::nullopt;
    }
    return Call{name, std::move(arguments)};
  }

  void blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  char peek() {
    blanks();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool skip(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  std::string word() {
    blanks();
    const size_t from = at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool part = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                        c == '.' || c == '-';
      if (!part) break;
      ++at_;
    }
    return std::string(text_.substr(from, at_ - from));
  }

  std::optional<json::value> literal(int depth) {
    if (depth > kMostDepth) return std::nullopt;
    const char c = peek();
    if (c == '[' || c == '(') return list(c == '[' ? ']' : ')', depth);
    if (c == '{') return dictionary(depth);
    if (c == '\'' || c == '"') return string();
    if (c == '+') ++at_;
    const std::string found = word_or_number();
    if (found == "True" || found == "true") return true;
    if (found == "False" || found == "false") return false;
    if (found == "None" || found == "null") return nullptr;
    boost::system::error_code error;
    json::value number = json::parse(found, error);
    if (error || !number.is_number()) return std::nullopt;
    return number;
  }

  std::string word_or_number() {
    const size_t from = at_;
    while (at_ < text_.size() && std::string_view(",)]}: \n\t\r").find(text_[at_]) == std::string_view::npos) ++at_;
    return std::string(text_.substr(from, at_ - from));
  }

  std::optional<json::value> list(char close, int depth) {
    ++at_;
    json::array out;
    while (!skip(close)) {
      auto value = literal(depth + 1);
      if (!value) return std::nullopt;
      out.push_back(std::move(*value));
      if (!skip(',') && peek() != close) return std::nullopt;
    }
    return out;
  }

  std::optional<json::value> dictionary(int depth) {
    ++at_;
    json::object out;
    while (!skip('}')) {
      if (peek() != '\'' && peek() != '"') return std::nullopt;
      auto key = string();
      if (!key || !skip(':')) return std::nullopt;
      auto value = literal(depth + 1);
      if (!value) return std::nullopt;
      out[key->get_string()] = std::move(*value);
      if (!skip(',') && peek() != '}') return std::nullopt;
    }
    return out;
  }

  std::optional<json::value> string() {
    const char quote = text_[at_++];
    std::string out;
    while (at_ < text_.size() && text_[at_] != quote) {
      char c = text_[at_++];
      if (c != '\\') {
        out += c;
        continue;
      }
      if (at_ == text_.size()) return std::nullopt;
      c = text_[at_++];
      switch (c) {
        case 'n':
          out += '\n';
          break;
        case 't':
          out += '\t';
          break;
        case 'r':
          out += '\r';
          break;
        case 'b':
          out += '\b';
          break;
        case 'f':
          out += '\f';
          break;
        case 'u': {
          // As JSON has it, in pairs where a character has two.
          const std::string_view pair = text_.substr(at_ - 2, 12);
          const bool is_pair = pair.size() == 12 && (pair[2] == 'd' || pair[2] == 'D') &&
                               std::string_view("89abAB").find(pair[3]) != std::string_view::npos &&
                               pair.substr(6, 2) == "\\u";
          const std::string_view escape = pair.substr(0, is_pair ? 12 : 6);
          boost::system::error_code error;
          const json::value one = json::parse("\"" + std::string(escape) + "\"", error);
          if (error || !one.is_string()) return std::nullopt;
          out += one.get_string();
          at_ += escape.size() - 2;
          break;
        }
        case '\\':
        case '\'':
        case '"':
        case '/':
          out += c;
          break;
        default:  // Python leaves others as they are
          out += '\\';
          out += c;
      }
    }
    if (at_ >= text_.size()) return std::nullopt;
    ++at_;
    return json::value(out);
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Whether all are of functions that there are; then they are told.
bool tell(const std::optional<std::vector<LiteralReader::Call>>& calls, CallWriter& writer, AnswerPiece& out) {
  if (!calls || !std::ranges::all_of(*calls, [&](const auto& call) { return writer.knows(call.first); })) return false;
  for (const auto& [name, arguments] : *calls) {
    writer.begin(name, out);
    writer.arguments(json::serialize(arguments), out);
  }
  return true;
}

// An answer that begins with a bracket is held until it ends; then it is calls, or text.
class PythonCallParser final : public AnswerParser {
 public:
  explicit PythonCallParser(const AnswerReading& reading) : writer_(reading) {}

  void push(std::string_view text, AnswerPiece& out) override {
    if (said_) {
      out.content += text;
      return;
    }
    held_ += text;
    const size_t start = held_.find_first_not_of(" \n\t\r");
    if (start == std::string::npos) return;
    const std::string_view found = std::string_view(held_).substr(start);
    if (found.front() == '[' || may_begin(kPythonTag, found) || may_begin(kPythonStart, found)) return;
    said_ = true;
    out.content += std::exchange(held_, {});
  }

  void finish(AnswerPiece& out) override {
    if (said_) return;
    std::string_view text = without_marks(held_);
    if (!tell(LiteralReader(text).calls(), writer_, out)) out.content += std::exchange(held_, {});
  }

 private:
  static bool may_begin(std::string_view mark, std::string_view text) {
    return mark.starts_with(text) || text.starts_with(mark);
  }

  // Of the marks at either end.
  static std::string_view without_marks(std::string_view text) {
    constexpr std::string_view kSpace = " \n\t\r";
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    for (const std::string_view mark : {kPythonTag, kPythonStart}) {
      if (text.starts_with(mark)) text.remove_prefix(mark.size());
    }
    text = text.substr(0, text.find_last_not_of(kSpace) + 1);
    if (text.ends_with(kPythonEnd)) text.remove_suffix(kPythonEnd.size());
    return text;
  }

  CallWriter writer_;
  std::string held_;
  bool said_ = false;
};

// Text around calls is told as it comes; what stands between marks is held until the second.
class MarkedPythonCallParser final : public AnswerParser {
 public:
  MarkedPythonCallParser(const AnswerReading& reading, const PythonCallFormat& format)
      : format_(format), writer_(reading) {}

  void push(std::string_view text, AnswerPiece& out) override {
    held_ += text;
    while (true) {
      size_t which = 0;
      const std::string_view mark = inside_ ? format_.close : format_.open;
      const size_t from = inside_ ? looked_at_ : 0;
      const size_t found = find_mark(std::string_view(held_).substr(from), {mark}, which);
      if (found == std::string_view::npos) break;
      const std::string before = held_.substr(0, from + found);
      held_.erase(0, from + found + mark.size());
      looked_at_ = 0;
      if (inside_ ? !tell_calls(before, out) : !before.empty()) {
        text_.say(inside_ ? std::string(format_.open) + before + std::string(format_.close) : before, out);
      }
      inside_ = !inside_;
    }
    if (inside_) {
      looked_at_ = held_.size() - std::min(held_.size(), format_.close.size() - 1);
      return;
    }
    const size_t keep = held_mark(held_, {format_.open});
    text_.say(held_.substr(0, held_.size() - keep), out);
    held_.erase(0, held_.size() - keep);
  }

  // The last mark may be missing: an end token takes its place.
  void finish(AnswerPiece& out) override {
    if (inside_ && tell_calls(held_, out)) return held_.clear();
    text_.say((inside_ ? std::string(format_.open) : std::string()) + std::exchange(held_, {}), out);
  }

 private:
  bool tell_calls(std::string_view text, AnswerPiece& out) {
    LiteralReader reader(text);
    return tell(format_.listed ? reader.calls() : reader.calls_one_behind_the_other(), writer_, out);
  }

  const PythonCallFormat& format_;
  CallWriter writer_;
  TextBesideCalls text_{writer_};
  std::string held_;
  size_t looked_at_ = 0;  // of what is held, which has no mark
  bool inside_ = false;
};

}  // namespace

std::unique_ptr<AnswerParser> make_marked_python_call_parser(const AnswerReading& reading) {
  return std::make_unique<MarkedPythonCallParser>(reading, *format_in(kPythonCallFormats, reading.tools));
}

std::unique_ptr<AnswerParser> make_python_call_parser(const AnswerReading& reading) {
  return std::make_unique<PythonCallParser>(reading);
}

}  // namespace quire::grammar
