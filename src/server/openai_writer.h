// Answers as OpenAI's chats and completions. A streamed answer is a row of parts; a whole one is all of them put
// together and written by the same code. What may be long (log-probabilities, token ids) is written as text at once,
// for as values it would take many times as much, and a prompt's part is made once for all of its choices.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json.hpp>

#include "server/answer_writer.h"
#include "server/body_source.h"
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

  // Writes the part of a choice that `delta` is: a chunk's choice, or all of it in a whole answer.
  virtual void part(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& out) = 0;
  // What a whole answer says beside its choices: `,"name":value`s.
  virtual void complete(const Answer&, TextBody&) {}

  boost::json::object envelope(boost::json::value usage) const;  // without choices
  // An envelope around choices that are written already; `more` is as of complete().
  std::string chunk(const TextBody& choices, const boost::json::value& usage, std::string_view more = "") const;
  boost::json::value usage_of(const ChoiceState& choice) const;
  // Index, finish reason and whatever else both have; add_ids() is what is long of it.
  boost::json::object choice_object(const ChoiceState& choice, const engine::OutputDelta& delta) const;
  void add_ids(const engine::OutputDelta& delta, TextBody& out) const;
  bool begun(const ChoiceState& choice) const { return begun_[static_cast<size_t>(choice.index)]; }
  // The text of a part: before the first one goes what is echoed.
  std::string text_of(const ChoiceState& choice, const engine::OutputDelta& delta) const;

  const AnswerContext context_;
  const TokenText tokens_;

 private:
  void choice_part(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& out);

  const std::string_view object_;
  std::vector<bool> begun_;  // by choice: something of it is written
};

class ChatWriter final : public OpenAiWriter {
 public:
  ChatWriter(AnswerContext context, size_t num_choices);
  void begin(const Answer& answer, std::string& events) override;

 private:
  void part(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& out) override;
  void complete(const Answer& answer, TextBody& out) override;
};

class CompletionWriter final : public OpenAiWriter {
 public:
  CompletionWriter(AnswerContext context, size_t num_choices);
  // An echoed prompt's log-probabilities begin a streamed choice, and the first choice alone brings them.
  bool prompt_comes_first() const override;

 private:
  // The four lists of log-probabilities, each without its brackets.
  struct Lists {
    std::string offsets, values, tokens, tops;
    int64_t offset = 0;  // characters that the tokens stand for
  };
  // What the choices of a prompt have in common, made when it is first asked for.
  struct PromptText {
    TextBody::Text ids;                            // [1,2]
    TextBody::Text logprobs;                       // of prompt_logprobs
    TextBody::Text offsets, values, tokens, tops;  // of its part of Lists, with a comma behind each
    int64_t offset = 0;
  };

  void part(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& out) override;
  void add_logprobs(const ChoiceState& choice, const engine::OutputDelta& delta, TextBody& out);
  void add_token(TokenId id, const PositionLogprobs* position, Lists& lists) const;
  void write_echo(const PromptState& prompt, PromptText& text) const;
  int64_t characters(TokenId id) const;

  std::map<const PromptState*, PromptText> prompts_;
  std::vector<int64_t> text_offsets_;  // by choice: characters that the tokens written so far stand for
};

boost::json::object usage_object(const Usage& usage);

}  // namespace quire::server
