// The parsers' parts. Private to grammar/.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "grammar/answer_reading.h"

namespace quire::grammar {

// Where one of `marks` begins in `text`, the earliest; npos: nowhere. `which`: its place in the list.
size_t find_mark(std::string_view text, std::initializer_list<std::string_view> marks, size_t& which);
// How many bytes at the end of `text` may be the beginning of one of them.
size_t held_mark(std::string_view text, std::initializer_list<std::string_view> marks);

// Numbers the calls of one answer and gives them ids. Where there is to be one, those behind it are left out.
class CallWriter {
 public:
  // `reading` must outlive it.
  explicit CallWriter(const AnswerReading& reading) : reading_(reading) {}

  // Whether there is such a function; where none are known, any.
  bool knows(std::string_view name) const;

  void begin(std::string_view name, AnswerPiece& out);
  void arguments(std::string_view piece, AnswerPiece& out);
  int32_t count() const { return count_; }

 private:
  std::string fresh_id(std::string_view name) const;

  const AnswerReading& reading_;
  int32_t count_ = 0;
  bool leaves_out_ = false;  // the call that was begun last
};

// What is said beside calls. White space behind a call is the answer's where more than calls follows.
class TextBesideCalls {
 public:
  // `writer`: of the calls; must outlive it.
  explicit TextBesideCalls(const CallWriter& writer) : writer_(writer) {}
  void say(std::string_view text, AnswerPiece& out);

 private:
  const CallWriter& writer_;
  int32_t num_calls_ = 0;  // when something was said last
  bool behind_call_ = false;
  std::string blank_;
};

// One JSON object of a call, character by character: {"name": ..., "arguments": {...}} in any order, or, with a name
// that is known, the arguments themselves.
class JsonCall {
 public:
  // needs_arguments: an object without them is no call.
  explicit JsonCall(CallWriter& writer, bool needs_arguments = false)
      : writer_(&writer), needs_arguments_(needs_arguments) {}

  void start(std::string_view name);  // empty: the object says it
  // False: the object is complete with this character.
  bool push(char c, AnswerPiece& out);
  // Whether it was a call; else its text is nothing but text.
  bool is_call() const { return begun_; }
  const std::string& text() const { return text_; }  // all of it, as long as it may turn out to be none

 private:
  enum class Value : uint8_t { kNone, kKey, kName, kArguments, kOther };

  void value_character(char c, AnswerPiece& out);
  void end_value(AnswerPiece& out);
  void begin(AnswerPiece& out);
  void emit(std::string_view piece, AnswerPiece& out);

  CallWriter* writer_;
  bool needs_arguments_;
  std::string name_;   // of a function that there is, while the call has not begun
  bool bare_ = false;  // the object is the arguments
  bool begun_ = false;
  bool has_arguments_ = false;  // their key has come
  bool had_arguments_ = false;
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool behind_colon_ = false;
  bool as_string_ = false;  // the arguments are a string that holds JSON
  Value value_ = Value::kNone;
  std::string key_;
  std::string captured_;  // a value that is looked at when it is complete: a name, or arguments written as a string
  std::string early_;     // arguments that came before the name
  std::string blank_;     // whitespace that may be at the end of the arguments
  std::string text_;
};

std::unique_ptr<AnswerParser> make_json_call_parser(const AnswerReading& reading);
std::unique_ptr<AnswerParser> make_xml_call_parser(const AnswerReading& reading);
std::unique_ptr<AnswerParser> make_python_call_parser(const AnswerReading& reading);
std::unique_ptr<AnswerParser> make_marked_python_call_parser(const AnswerReading& reading);
std::unique_ptr<AnswerParser> make_gemma_call_parser(const AnswerReading& reading);
std::unique_ptr<AnswerParser> make_channel_parser(const AnswerReading& reading);

}  // namespace quire::grammar
