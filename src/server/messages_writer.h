// Answers in the shape of Anthropic's /v1/messages: content blocks, and a stream of named events about them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "server/answer_writer.h"

namespace quire::server {

class MessagesWriter final : public AnswerWriter {
 public:
  // max_tokens: what the request allowed the answer.
  MessagesWriter(AnswerContext context, int64_t max_tokens) : context_(std::move(context)), max_tokens_(max_tokens) {}

  void begin(const Answer& answer, std::string& events) override;
  void piece(const Answer& answer, const ChoiceState& choice, const engine::OutputDelta& delta,
             std::string& events) override;
  void end(const Answer& answer, std::string& events) override;
  void fail(const ApiError& error, std::string& events) override;
  HttpResponse whole(const Answer& answer, std::span<const engine::OutputDelta> choices) override;
  HttpResponse failure(const ApiError& error) override;

 private:
  enum class Kind { kNone, kThinking, kText, kToolUse };

  boost::json::object message() const;
  // {"stop_reason", "stop_sequence"}
  boost::json::object ending(const engine::OutputDelta& last, const ChoiceState& choice) const;
  // One block at a time, each from its first piece to the next one's.
  void open(Kind kind, boost::json::object block, std::string& events);
  void close(std::string& events);
  void change(boost::json::object delta, std::string& events) const;

  const AnswerContext context_;
  const int64_t max_tokens_;
  Kind kind_ = Kind::kNone;
  int64_t index_ = 0;  // of the block
  int32_t call_index_ = 0;
  boost::json::object ending_;
  bool aborted_ = false;
};

}  // namespace quire::server
