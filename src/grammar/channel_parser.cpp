// gpt-oss's answers (harmony): messages, each in a channel. The prompt ends with "<|start|>assistant".
//   <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
#include <string>
#include <utility>

#include "grammar/answer_parsers.h"

namespace quire::grammar {
namespace {

constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kChannel = "<|channel|>";

class ChannelParser final : public AnswerParser {
 public:
  explicit ChannelParser(const AnswerReading& reading) : reading_(reading), writer_(reading) {}

  void push(std::string_view text, AnswerPiece& out) override {
    held_ += text;
    while (in_message_ ? message(out) : header(out)) {
    }
  }

  void finish(AnswerPiece& out) override {
    if (in_message_) {
      say(held_, out);
    } else if (held_.find(kChannel) == std::string::npos) {
      out.content += held_;  // an answer without channels
    }
    held_.clear();
  }

  bool holds_mark() const override { return !held_.empty(); }
  bool in_reasoning() const override { return in_message_ && channel_ == Channel::kAnalysis; }

 private:
  enum class Channel : uint8_t { kFinal, kAnalysis, kCall };

  bool header(AnswerPiece& out) {
    const size_t end = held_.find(kMessage, looked_ > kMessage.size() ? looked_ - kMessage.size() : 0);
    looked_ = held_.size();
    if (end == std::string::npos) return false;
    const std::string_view head = std::string_view(held_).substr(0, end);
    channel_ = head.find("analysis") != std::string_view::npos && reading_.reasoning == ReasoningFormat::kGptOss
                   ? Channel::kAnalysis
                   : Channel::kFinal;
    constexpr std::string_view kTo = "to=functions.";
    if (const size_t to = head.find(kTo); to != std::string_view::npos && reading_.reads_tools()) {
      const std::string_view name = head.substr(to + kTo.size());
      writer_.begin(name.substr(0, name.find_first_of(" <\n")), out);
      channel_ = Channel::kCall;
    }
    held_.erase(0, end + kMessage.size());
    looked_ = 0;
    in_message_ = true;
    return true;
  }

  bool message(AnswerPiece& out) {
    const std::initializer_list<std::string_view> marks = {"<|end|>", "<|return|>", "<|call|>", kStart};
    size_t which = 0;
    const size_t found = find_mark(held_, marks, which);
    if (found == std::string::npos) {
      const size_t length = held_.size() - held_mark(held_, marks);
      say(std::string_view(held_).substr(0, length), out);
      held_.erase(0, length);
      return false;
    }
    say(std::string_view(held_).substr(0, found), out);
    held_.erase(0, found + (marks.begin() + which)->size());
    looked_ = 0;
    in_message_ = false;
    return true;
  }

  void say(std::string_view text, AnswerPiece& out) {
    switch (channel_) {
      case Channel::kFinal:
        out.content += text;
        break;
      case Channel::kAnalysis:
        out.reasoning += text;
        break;
      case Channel::kCall:
        writer_.arguments(text, out);
        break;
    }
  }

  const AnswerReading& reading_;
  CallWriter writer_;
  std::string held_;
  size_t looked_ = 0;
  bool in_message_ = false;
  Channel channel_ = Channel::kFinal;
};

}  // namespace

std::unique_ptr<AnswerParser> make_channel_parser(const AnswerReading& reading) {
  return std::make_unique<ChannelParser>(reading);
}

}  // namespace quire::grammar
