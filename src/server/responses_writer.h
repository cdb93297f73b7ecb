// Answers in the shape of /v1/responses: output items, and a stream of numbered events about them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "server/answer_writer.h"
#include "server/token_text.h"

namespace quire::server {

class ResponsesWriter final : public AnswerWriter {
 public:
  // How a response ended: as its client sees it, and the answer as a chat's message.
  using Finished = std::function<void(const boost::json::object& response, const boost::json::object& message)>;

  // response: id, model and what it repeats of the request. finished: called when it is over, however it ended, before
  // the client has heard of it; never for a client that went away.
  ResponsesWriter(AnswerContext context, boost::json::object response, Finished finished);

  void begin(const Answer& answer, std::string& events) override;
  void piece(const Answer& answer, const ChoiceState& choice, const engine::OutputDelta& delta,
             std::string& events) override;
  void end(const Answer& answer, std::string& events) override;
  void fail(const ApiError& error, std::string& events) override;
  HttpResponse whole(const Answer& answer, std::span<const engine::OutputDelta> choices) override;
  HttpResponse failure(const ApiError& error) override;

 private:
  enum class Kind { kNone, kReasoning, kText, kCall };

  // Nothing is written where `events_` is nullptr: the answer is whole.
  void event(std::string_view type, boost::json::object fields);
  void add(const engine::OutputDelta& delta);
  void add_text(Kind kind, const std::string& text, boost::json::array logprobs);
  void add_call(const grammar::ToolCallPiece& piece);
  // The item that is being written: one at a time, each from its first piece to the next one's.
  void open(Kind kind);
  void close();
  boost::json::object item(std::string_view status, bool whole) const;
  boost::json::object part() const;   // of an item of text or reasoning
  boost::json::object place() const;  // of what is being written
  void finish(const Usage& usage);
  void finish_failed(const ApiError& error);

  const AnswerContext context_;
  const TokenText tokens_;
  boost::json::object response_;
  const Finished finished_;
  std::string* events_ = nullptr;
  int64_t sequence_number_ = 0;
  FinishReason finish_ = FinishReason::kNone;

  Kind kind_ = Kind::kNone;
  std::string item_id_;
  std::string text_;  // of the item: text, reasoning or arguments
  boost::json::array logprobs_;
  int32_t call_index_ = 0;
  std::string call_id_;
  std::string call_name_;
  boost::json::array output_;    // items that are done
  boost::json::object message_;  // the answer as a chat's message
};

}  // namespace quire::server
