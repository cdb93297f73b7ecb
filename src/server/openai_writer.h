// Answers as OpenAI's chats and completions. A streamed answer is a row of parts; a whole one is all of them put
// together and written by the same code.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "server/answer_writer.h"
#include "server/token_text.h"

namespace quire::server {

// What chats and completions have in common: an envelope around choices.
class OpenAiWriter : public AnswerWriter {
 public:
  void begin(const Answer& answer, std::string& events) override;
  void piece(const Answer& answer, const ChoiceState& choice, const engine::OutputDelta& delta,
             std::string& events) override;
  void end(const Answer& answer, std::string& events) override;
  void fail(const ApiError& error, std::string& events) override;
  HttpResponse whole(const Answer& answer, std::span<const engine::OutputDelta> choices) override;

 protected:
  OpenAiWriter(AnswerContext context, std::string_view object, size_t num_choices);

  // The part of a choice that `delta` is: a chunk's choice, or all of it in a whole answer.
  virtual boost::json::object part(const ChoiceState& choice, const engine::OutputDelta& delta) = 0;
  // What a whole answer says beside its choices.
  virtual void complete(const Answer&, boost::json::object&) {}

  boost::json::object envelope(boost::json::array choices, boost::json::value usage) const;
  boost::json::value usage_of(const ChoiceState& choice) const;
  // Index, finish reason and whatever else both have.
  boost::json::object choice_object(const ChoiceState& choice, const engine::OutputDelta& delta) const;
  bool begun(const ChoiceState& choice) const { return begun_[static_cast<size_t>(choice.index)]; }
  // The text of a part: before the first one goes what is echoed.
  std::string text_of(const ChoiceState& choice, const engine::OutputDelta& delta) const;

  const AnswerContext context_;
  const TokenText tokens_;

 private:
  boost::json::object choice_part(const ChoiceState& choice, const engine::OutputDelta& delta);

  const std::string_view object_;
  std::vector<bool> begun_;  // by choice: something of it is written
};

class ChatWriter final : public OpenAiWriter {
 public:
  ChatWriter(AnswerContext context, size_t num_choices);
  void begin(const Answer& answer, std::string& events) override;

 private:
  boost::json::object part(const ChoiceState& choice, const engine::OutputDelta& delta) override;
  void complete(const Answer& answer, boost::json::object& body) override;
};

class CompletionWriter final : public OpenAiWriter {
 public:
  CompletionWriter(AnswerContext context, size_t num_choices);
  // An echoed prompt's log-probabilities begin a streamed choice, and the first choice alone brings them.
  bool prompt_comes_first() const override;

 private:
  boost::json::object part(const ChoiceState& choice, const engine::OutputDelta& delta) override;
  boost::json::object logprobs(const ChoiceState& choice, const engine::OutputDelta& delta);
  int64_t characters(TokenId id) const;

  std::vector<int64_t> text_offsets_;  // by choice: characters that the tokens written so far stand for
};

boost::json::object usage_object(const Usage& usage);

}  // namespace quire::server
