// Calls written as Python would: [name(key=value, ...), ...], the whole answer. Values are literals; nothing is ever
// evaluated. JSON's true, false and null are taken beside Python's.
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

  // "[f(a=1), g()]", all of the text: names with their arguments.
  std::optional<std::vector<std::pair<std::string, json::object>>> calls() {
    std::vector<std::pair<std::string, json::object>> out;
    if (!skip('[')) return std::nullopt;
    while (!skip(']')) {
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
      out.emplace_back(name, std::move(arguments));
      if (!skip(',') && peek() != ']') return std::nullopt;
    }
    blanks();
    if (at_ != text_.size() || out.empty()) return std::nullopt;
    return out;
  }

 private:
  static constexpr int kMostDepth = 64;

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
    const auto calls = LiteralReader(text).calls();
    const bool are_known =
        calls && std::ranges::all_of(*calls, [&](const auto& call) { return writer_.knows(call.first); });
    if (!are_known) {
      out.content += std::exchange(held_, {});
      return;
    }
    for (const auto& [name, arguments] : *calls) {
      writer_.begin(name, out);
      writer_.arguments(json::serialize(arguments), out);
    }
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

}  // namespace

std::unique_ptr<AnswerParser> make_python_call_parser(const AnswerReading& reading) {
  return std::make_unique<PythonCallParser>(reading);
}

}  // namespace quire::grammar
