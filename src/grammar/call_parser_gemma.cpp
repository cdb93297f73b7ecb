// Gemma 4's calls: <|tool_call>call:name{key:<|"|>text<|"|>,list:[1,true],inner:{key:null}}<tool_call|>. A call is held
// until it is whole, for its values are not JSON. JSON's own spelling is read too: calls that must be are written so.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "grammar/answer_parsers.h"
#include "grammar/tool_formats.h"

namespace quire::grammar {
namespace json = boost::json;

namespace {

class GemmaReader {
 public:
  explicit GemmaReader(std::string_view text) : text_(text) {}

  // "call:name{...}", all of the text.
  std::optional<std::pair<std::string, json::object>> call() {
    constexpr std::string_view kCall = "call:";
    blanks();
    if (!take(kCall)) return std::nullopt;
    const size_t brace = text_.find('{', at_);
    if (brace == std::string_view::npos) return std::nullopt;
    std::string name(trimmed(text_.substr(at_, brace - at_)));
    at_ = brace;
    auto arguments = object(0);
    blanks();
    if (name.empty() || !arguments || at_ != text_.size()) return std::nullopt;
    return std::pair(std::move(name), std::move(arguments->as_object()));
  }

 private:
  static constexpr int kMostDepth = 64;
  static constexpr std::string_view kSpace = " \n\t\r";

  static std::string_view trimmed(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    return text.substr(0, text.find_last_not_of(kSpace) + 1);
  }
  void blanks() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }
  bool take(std::string_view mark) {
    if (!text_.substr(at_).starts_with(mark)) return false;
    at_ += mark.size();
    return true;
  }
  bool skip(char c) {
    blanks();
    return take(std::string_view(&c, 1));
  }

  std::optional<json::value> value(int depth) {
    if (depth > kMostDepth) return std::nullopt;
    blanks();
    if (at_ == text_.size()) return std::nullopt;
    if (text_[at_] == '{') return object(depth);
    if (text_[at_] == '[') return list(depth);
    if (auto quoted = string()) return json::value(*quoted);
    const std::string_view word = trimmed(until(",]}"));
    if (word.empty()) return std::nullopt;
    boost::system::error_code error;
    json::value plain = json::parse(word, error);
    return error ? json::value(word) : plain;
  }

  std::optional<json::value> object(int depth) {
    ++at_;
    json::object out;
    while (!skip('}')) {
      blanks();
      const std::optional<std::string> quoted = string();
      const std::string key = quoted ? *quoted : std::string(trimmed(until(":")));
      if (key.empty() || !skip(':')) return std::nullopt;
      auto found = value(depth + 1);
      if (!found) return std::nullopt;
      out[key] = std::move(*found);
      if (skip(',')) continue;
      if (!skip('}')) return std::nullopt;
      break;
    }
    return out;
  }

  std::optional<json::value> list(int depth) {
    ++at_;
    json::array out;
    while (!skip(']')) {
      auto found = value(depth + 1);
      if (!found) return std::nullopt;
      out.push_back(std::move(*found));
      if (skip(',')) continue;
      if (!skip(']')) return std::nullopt;
      break;
    }
    return out;
  }

  // Between marks, as it stands, or JSON's. nullopt: none begins here, or it has no end.
  std::optional<std::string> string() {
    const size_t from = at_;
    if (take(kGemmaQuote)) {
      const size_t end = text_.find(kGemmaQuote, at_);
      if (end != std::string_view::npos) {
        std::string out(text_.substr(at_, end - at_));
        at_ = end + kGemmaQuote.size();
        return out;
      }
    } else if (take("\"")) {
      while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
      if (at_ < text_.size()) {
        ++at_;
        boost::system::error_code error;
        const json::value out = json::parse(text_.substr(from, at_ - from), error);
        if (!error && out.is_string()) return std::string(out.get_string());
      }
    }
    at_ = from;
    return std::nullopt;
  }

  std::string_view until(std::string_view ends) {
    const size_t from = at_;
    at_ = std::min(text_.find_first_of(ends, at_), text_.size());
    return text_.substr(from, at_ - from);
  }

  std::string_view text_;
  size_t at_ = 0;
};

class GemmaCallParser final : public AnswerParser {
 public:
  explicit GemmaCallParser(const AnswerReading& reading) : writer_(reading) {}

  void push(std::string_view text, AnswerPiece& out) override {
    held_ += text;
    while (in_call_ ? read_call(out) : read_text(out)) {
    }
  }

  void finish(AnswerPiece& out) override {
    if (!in_call_) {
      text_.say(std::exchange(held_, {}), out);
    } else if (!write_call(held_, out)) {  // whose end mark was the answer's end, perhaps
      text_.say(std::string(kGemmaCall) + std::exchange(held_, {}), out);
    }
    in_call_ = false;
    held_.clear();
  }

 private:
  // How often a call that does not read is tried again with the next end mark, which may stand in a text of JSON.
  static constexpr int kMostEnds = 8;

  // False: more text is needed.
  bool read_text(AnswerPiece& out) {
    size_t which = 0;
    const size_t begin = find_mark(held_, {kGemmaCall}, which);
    if (begin == std::string::npos) {
      const size_t keep = held_mark(held_, {kGemmaCall});
      text_.say(std::string_view(held_).substr(0, held_.size() - keep), out);
      held_.erase(0, held_.size() - keep);
      return false;
    }
    text_.say(std::string_view(held_).substr(0, begin), out);
    held_.erase(0, begin + kGemmaCall.size());
    in_call_ = true;
    in_quotes_ = false;
    scanned_ = 0;
    ends_ = 0;
    return true;
  }

  bool read_call(AnswerPiece& out) {
    size_t which = 0;
    const size_t found = find_mark(std::string_view(held_).substr(scanned_), {kGemmaQuote, kGemmaCallEnd}, which);
    if (found == std::string::npos) {
      scanned_ = std::max(scanned_, held_.size() - held_mark(held_, {kGemmaQuote, kGemmaCallEnd}));
      return false;
    }
    const size_t at = scanned_ + found;
    scanned_ = at + (which == 0 ? kGemmaQuote : kGemmaCallEnd).size();
    if (which == 0) {
      in_quotes_ = !in_quotes_;
      return true;
    }
    if (in_quotes_) return true;
    if (!write_call(std::string_view(held_).substr(0, at), out)) {
      if (++ends_ < kMostEnds) return true;
      text_.say(std::string(kGemmaCall) + held_.substr(0, scanned_), out);
    }
    held_.erase(0, scanned_);
    in_call_ = false;
    return true;
  }

  bool write_call(std::string_view text, AnswerPiece& out) {
    const auto call = GemmaReader(text).call();
    if (!call || !writer_.knows(call->first)) return false;
    writer_.begin(call->first, out);
    writer_.arguments(json::serialize(call->second), out);
    return true;
  }

  CallWriter writer_;
  TextBesideCalls text_{writer_};
  std::string held_;  // text that may begin a call, or the call behind its mark
  bool in_call_ = false;
  bool in_quotes_ = false;
  size_t scanned_ = 0;  // of the call
  int ends_ = 0;
};

}  // namespace

std::unique_ptr<AnswerParser> make_gemma_call_parser(const AnswerReading& reading) {
  return std::make_unique<GemmaCallParser>(reading);
}

}  // namespace quire::grammar
