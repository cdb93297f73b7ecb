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

// Numbers the calls of one answer and gives them ids.
class CallWriter {
 public:
  explicit CallWriter(ToolFormat format) : format_(format) {}

  void begin(std::string_view name, AnswerPiece& out);
  void arguments(std::string_view piece, AnswerPiece& out);
  int32_t count() const { return count_; }

 private:
  std::string fresh_id(std::string_view name) const;

  ToolFormat format_;
  int32_t count_ = 0;
};

// One JSON object of a call, character by character: {"name": ..., "arguments": {...}} in any order, or, with a name
// that is known, the arguments themselves.
class JsonCall {
 public:
  explicit JsonCall(CallWriter& writer) : writer_(&writer) {}

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
  void emit(std::string_view piece, AnswerPiece& out);

  CallWriter* writer_;
  bool bare_ = false;  // the object is the arguments
  bool begun_ = false;
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
std::unique_ptr<AnswerParser> make_channel_parser(const AnswerReading& reading);

}  // namespace quire::grammar
