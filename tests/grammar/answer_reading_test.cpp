#include "grammar/answer_reading.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire::grammar {
namespace {

namespace json = boost::json;
using testing::HasSubstr;
using testing::IsEmpty;

struct Call {
  std::string name;
  json::value arguments;
  bool operator==(const Call&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Call& call) {
  return out << call.name << "(" << json::serialize(call.arguments) << ")";
}

struct Read {
  std::string content;
  std::string reasoning;
  std::vector<Call> calls;
};

AnswerReading reading_of(ToolFormat format, ReasoningFormat reasoning = ReasoningFormat::kNone) {
  AnswerReading reading;
  reading.tools = format;
  reading.choice = format == ToolFormat::kNone ? ToolChoice::kNone : ToolChoice::kAuto;
  reading.reasoning = reasoning;
  const json::value schema = json::parse(
      R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"tags":{"type":"array"}}})");
  reading.functions = {{"get_weather", schema, false}, {"get_time", json::object{{"type", "object"}}, false}};
  return reading;
}

// The pieces put together as a client puts them together.
Read read(const AnswerReading& reading, const std::vector<std::string>& cuts) {
  const auto parser = make_answer_parser(reading);
  Read out;
  std::vector<std::string> arguments;
  AnswerPiece piece;
  const auto take = [&] {
    out.content += piece.content;
    out.reasoning += piece.reasoning;
    for (const ToolCallPiece& call : piece.calls) {
      if (!call.name.empty()) {
        EXPECT_EQ(call.index, static_cast<int32_t>(out.calls.size()));
        EXPECT_FALSE(call.id.empty());
        out.calls.push_back({call.name, nullptr});
        arguments.emplace_back();
      }
      arguments.at(static_cast<size_t>(call.index)) += call.arguments;
    }
    piece = {};
  };
  for (const std::string& cut : cuts) {
    parser->push(cut, piece);
    take();
  }
  parser->finish(piece);
  take();
  for (size_t i = 0; i < arguments.size(); ++i) {
    boost::system::error_code error;
    out.calls[i].arguments = json::parse(arguments[i], error);
    EXPECT_FALSE(error) << arguments[i];
  }
  return out;
}

// The same however it is cut: whole, by bytes, in two at every place.
Read read_every_way(const AnswerReading& reading, const std::string& text) {
  const Read whole = read(reading, {text});
  std::vector<std::vector<std::string>> ways(1);
  for (const char c : text) ways[0].emplace_back(1, c);
  for (size_t i = 1; i < text.size(); ++i) ways.push_back({text.substr(0, i), text.substr(i)});
  for (const auto& way : ways) {
    const Read other = read(reading, way);
    EXPECT_EQ(other.content, whole.content) << "cut behind: " << way.front();
    EXPECT_EQ(other.reasoning, whole.reasoning) << "cut behind: " << way.front();
    EXPECT_EQ(other.calls, whole.calls) << "cut behind: " << way.front();
  }
  return whole;
}

json::value parsed(std::string_view text) {
  return json::parse(text);
}

struct FormatCase {
  ToolFormat format;
  const char* text;
  const char* content;
};

// Two calls: get_weather(city = "Zürich <b>", days = 3) and get_time().
const FormatCase kFormats[] = {
    {ToolFormat::kHermes,
     "Let me look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich <b>\", \"days\": 3}}\n"
     "</tool_call>\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>",
     "Let me look.\n"},
    {ToolFormat::kHermes,  // the arguments first, and as text
     "<tool_call>{\"arguments\": \"{\\\"city\\\": \\\"Zürich <b>\\\", \\\"days\\\": 3}\", \"name\": \"get_weather\"}"
     "</tool_call><tool_call>{\"name\":\"get_time\"}</tool_call>",
     ""},
    {ToolFormat::kHermes,  // and text behind them
     "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich <b>\", \"days\": 3}}</tool_call>\n"
     "<tool_call>{\"name\": \"get_time\", \"arguments\": {}}</tool_call>\nNow we  wait.",
     "\nNow we  wait."},
    {ToolFormat::kLlama3Json,
     "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich <b>\", \"days\": 3}}; {\"name\": \"get_time\", "
     "\"parameters\": {}}",
     ""},
    {ToolFormat::kLlama3Json,
     "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich <b>\", \"days\": 3}}{\"name\": "
     "\"get_time\", \"parameters\": { }}",
     ""},
    {ToolFormat::kMistral,
     "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich <b>\", \"days\": 3}}, {\"name\": "
     "\"get_time\", \"arguments\": {}}]",
     ""},
    {ToolFormat::kMistral,
     "On it.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Zürich <b>\", \"days\": 3}[TOOL_CALLS]get_time[CALL_ID]123456789"
     "[ARGS]{}",
     "On it."},
    {ToolFormat::kQwen3Coder,
     "First:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich <b>\n</parameter>\n<parameter=days>\n3\n"
     "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
     "First:\n"},
    {ToolFormat::kQwen3Coder,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nZürich <b>\n</parameter>\n<parameter=days>\n3\n"
     "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call> So be it.\n",
     " So be it.\n"},
    {ToolFormat::kGlm,
     "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Zürich <b></arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n</tool_call>",
     ""},
    {ToolFormat::kMinimaxM2,
     "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Zürich <b></parameter>\n<parameter "
     "name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>\n</minimax:tool_call>",
     ""},
    {ToolFormat::kPythonic, "[get_weather(city='Zürich <b>', days=3), get_time()]", ""},
    {ToolFormat::kDeepseekV3,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Zürich "
     "<b>\", "
     "\"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     ""},
    {ToolFormat::kDeepseekV3,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Zürich <b>\", \"days\": 3}"
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     ""},
    {ToolFormat::kGranite,
     "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich <b>\", \"days\": 3}}, {\"name\": "
     "\"get_time\", \"arguments\": {}}]",
     ""},
    {ToolFormat::kKimiK2,
     "I "
     "look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\""
     ": \"Zürich <b>\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.get_time:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "I look."},
    {ToolFormat::kLlama4Pythonic, "<|python_start|>[get_weather(city='Zürich <b>', days=3), get_time()]<|python_end|>",
     ""},
    {ToolFormat::kLlama4Pythonic, "\n[get_weather(city='Zürich <b>', days=3), get_time()]", ""},
    {ToolFormat::kDeepseekV31,
     "Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Zürich <b>\", \"days\": 3}"
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "Yes."},
    {ToolFormat::kInternlm,
     "I look.<|action_start|><|plugin|>\n{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Zürich <b>\", "
     "\"days\": 3}}<|action_end|>\n<|action_start|><|plugin|>{\"name\": \"get_time\", \"parameters\": "
     "{}}\n<|action_end|>",
     "I look."},
    {ToolFormat::kJamba,
     "On it.<tool_calls>[\n    {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich <b>\", \"days\": "
     "3}},\n    {\"name\": \"get_time\", \"arguments\": {}}\n]</tool_calls>",
     "On it."},
    {ToolFormat::kNemotron,
     "On it.<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich <b>\", \"days\": 3}}, "
     "{\"name\": \"get_time\", \"arguments\": {}}]</TOOLCALL>",
     "On it."},
    {ToolFormat::kSeedOss,
     "First:\n<seed:tool_call>\n<function=get_weather>\n<parameter=city>Zürich <b></parameter>\n<parameter=days>3"
     "</parameter>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=get_time>\n</function>\n"
     "</seed:tool_call>",
     "First:\n"},
    {ToolFormat::kLfm2,
     "<|tool_call_start|>[get_weather(city=\"Zürich <b>\", days=3), get_time()]<|tool_call_end|>I look.", "I look."},
    {ToolFormat::kLfm2,  // apart, and the last mark missing
     "So:<|tool_call_start|>[get_weather(city='Zürich <b>', days=3)]<|tool_call_end|>\n<|tool_call_start|>[get_time()]",
     "So:"},
    {ToolFormat::kOlmo3,
     "I look.\n<function_calls>\nget_weather(city=\"Zürich <b>\", days=3)\nget_time()\n</function_calls>", "I look.\n"},
    {ToolFormat::kPhi4Mini,
     "functools[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Zürich <b>\", \"days\": 3}}, {\"name\": "
     "\"get_time\", \"arguments\": {}}]",
     ""},
    {ToolFormat::kStep3,
     "Let me see.<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "
     "name=\"get_weather\">\n"
     "<steptml:parameter name=\"city\">Zürich <b></steptml:parameter>\n<steptml:parameter name=\"days\">3"
     "</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
     "<steptml:invoke name=\"get_time\"></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
     "Let me see."},
    {ToolFormat::kStep3,  // without the kind of call
     "<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name=\"get_weather\"><steptml:parameter name=\"city\">"
     "Zürich <b></steptml:parameter><steptml:parameter name=\"days\">3</steptml:parameter></steptml:invoke>"
     "<｜tool_call_end｜><｜tool_sep｜><｜tool_call_begin｜><steptml:invoke name=\"get_time\"></steptml:invoke>"
     "<｜tool_call_end｜><｜tool_calls_end｜>",
     ""},
    {ToolFormat::kGemma4,
     "I look.<|tool_call>call:get_weather{city:<|\"|>Zürich <b><|\"|>,days:3}<tool_call|><|tool_call>call:get_time{}"
     "<tool_call|>",
     "I look."},
    {ToolFormat::kGemma4,  // as JSON, and without the last mark
     "<|tool_call>call:get_weather{\"city\": \"Zürich <b>\", \"days\": 3}<tool_call|>\n<|tool_call>call:get_time{ }",
     ""},
    {ToolFormat::kGptOss,
     "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Zürich <b>\", \"days\": "
     "3}"
     "<|call|><|start|>assistant<|channel|>commentary to=functions.get_time<|message|>{}<|call|>",
     ""},
};

TEST(AnswerReading, EveryFormatIsReadTheSameHoweverItIsCut) {
  const std::vector<Call> expected = {{"get_weather", parsed(R"({"city":"Zürich <b>","days":3})")},
                                      {"get_time", parsed("{}")}};
  for (const FormatCase& one : kFormats) {
    SCOPED_TRACE(one.text);
    const Read read = read_every_way(reading_of(one.format), one.text);
    EXPECT_EQ(read.calls, expected);
    EXPECT_EQ(read.content, one.content);
  }
}

TEST(AnswerReading, TextThatIsNoCallStaysText) {
  const std::pair<ToolFormat, const char*> texts[] = {
      {ToolFormat::kHermes, "a < b and <tool is no mark"},
      {ToolFormat::kHermes, "<tool_call>not JSON at all</tool_call>"},
      {ToolFormat::kHermes, "<tool_call>{\"no\": \"name\"}"},
      {ToolFormat::kLlama3Json, "  Paris is a city {not a call}."},
      {ToolFormat::kLlama3Json, "{\"answer\": 42}"},
      {ToolFormat::kMistral, "[TOOL is no mark"},
      {ToolFormat::kQwen3Coder, "<tool_call>nothing"},
      {ToolFormat::kMinimaxM2, "<minimax:tool"},
      {ToolFormat::kPythonic, "[1, 2, 3]"},
      {ToolFormat::kPythonic, "[f(a=__import__('os').system('x'))]"},
      {ToolFormat::kPythonic, "It is [sunny]."},
      {ToolFormat::kLlama4Pythonic, "<|python_start|>[1, 2]<|python_end|>"},
      {ToolFormat::kLlama4Pythonic, "<|python_star"},
      {ToolFormat::kLlama4Pythonic, "[f(a=open('x').read())]"},
      {ToolFormat::kDeepseekV31, "<｜tool▁calls▁begin｜>nothing<｜tool▁calls▁end｜>"},
      {ToolFormat::kInternlm, "<|action_start|> alone, <|plugin|> alone"},
      {ToolFormat::kInternlm, "<|action_start|><|plugin|>{\"no\": \"name\"}"},
      {ToolFormat::kJamba, "<tool_calls>[not a call]</tool_calls>"},
      {ToolFormat::kNemotron, "<TOOLCALL>[not a call]</TOOLCALL>"},
      {ToolFormat::kLfm2, "<|tool_call_start|>[1, 2]<|tool_call_end|> is text"},
      {ToolFormat::kLfm2, "[get_time()] without marks, and <|tool_call_st"},
      {ToolFormat::kLfm2, "<|tool_call_start|>[get_time("},
      {ToolFormat::kOlmo3, "<function_calls>\nget_time() and more\n</function_calls>"},
      {ToolFormat::kJamba, "<tool_call>{\"name\": \"f\"}</tool_call>"},
      {ToolFormat::kPhi4Mini, "functools is a module; functools[0] is none"},
      {ToolFormat::kStep3, "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>nothing"},
      {ToolFormat::kStep3, "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function"},
      {ToolFormat::kGemma4, "<|tool_call>nothing<tool_call|> and more"},
      {ToolFormat::kGemma4, "<|tool_call>call:f{a:<|\"|>no end<tool_call|>"},
      {ToolFormat::kGemma4, "<|tool_call>call:f{a:1"},
      {ToolFormat::kGemma4, "<|tool_cal"},
  };
  for (const auto& [format, text] : texts) {
    SCOPED_TRACE(text);
    const Read read = read_every_way(reading_of(format), text);
    EXPECT_THAT(read.calls, IsEmpty());
    EXPECT_EQ(read.content, text);
  }
}

TEST(AnswerReading, AParametersTextMeansWhatItsSchemaSays) {
  AnswerReading reading = reading_of(ToolFormat::kQwen3Coder);
  const Read read = read_every_way(
      reading,
      "<tool_call><function=get_weather><parameter=city>\n42\n</parameter><parameter=days>42</parameter>"
      "<parameter=tags>\n[\"a\", 1]\n</parameter><parameter=other>two\nlines</parameter></function></tool_call>");
  ASSERT_EQ(read.calls.size(), 1U);
  EXPECT_EQ(read.calls[0].arguments, parsed(R"({"city":"42","days":42,"tags":["a",1],"other":"two\nlines"})"));
}

TEST(AnswerReading, ACallOfElementsThatIsCutHasTheParametersThatAreWhole) {
  const AnswerReading reading = reading_of(ToolFormat::kGlm);
  const std::string whole =
      "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</"
      "arg_key>\n<arg_value>3";
  for (size_t length = whole.find("Paris</arg_value>") + 17; length <= whole.size(); ++length) {
    const Read read = read_every_way(reading, whole.substr(0, length));
    ASSERT_EQ(read.calls.size(), 1U) << length;
    EXPECT_EQ(read.calls[0].arguments, parsed(R"({"city":"Paris"})")) << length;
  }
  const Read early = read_every_way(reading, "<tool_call>get_wea");
  EXPECT_THAT(early.calls, IsEmpty());
  EXPECT_EQ(early.content, "<tool_call>get_wea");
}

TEST(AnswerReading, PythonsLiteralsAreRead) {
  AnswerReading reading = reading_of(ToolFormat::kPythonic);
  reading.functions = {{"f", json::object(), false}, {"h", json::object(), false}};
  const Read read = read_every_way(
      reading, R"([f(a=True, b=None, c=-1.5e3, d=[1, 'x', (2,)], e={"k": false}, f="q\"\n\u00e9", g='it''), h()])");
  EXPECT_THAT(read.calls, IsEmpty()) << "an unterminated string";
  const Read good = read_every_way(
      reading, R"([f(a=True, b=None, c=-1.5e3, d=[1, 'x', (2,)], e={"k": false}, f="q\"\n\u00e9"), h()])");
  ASSERT_EQ(good.calls.size(), 2U);
  EXPECT_EQ(good.calls[0].arguments,
            parsed(R"({"a":true,"b":null,"c":-1500.0,"d":[1,"x",[2]],"e":{"k":false},"f":"q\"\né"})"));
  const Read escapes = read_every_way(reading, R"([f(a="\ud83d\ude00", b="\b\f")])");
  ASSERT_EQ(escapes.calls.size(), 1U);
  EXPECT_EQ(escapes.calls[0].arguments, parsed(R"({"a":"😀","b":"\b\f"})"));
}

TEST(AnswerReading, Gemma4sValuesAreRead) {
  const auto arguments = [](const std::string& text) {
    const Read read =
        read_every_way(reading_of(ToolFormat::kGemma4), "<|tool_call>call:get_time{" + text + "}<tool_call|>");
    EXPECT_EQ(read.calls.size(), 1U) << text << " " << read.content;
    return read.calls.empty() ? json::value() : json::value(read.calls[0].arguments);
  };
  EXPECT_EQ(arguments(R"(a:<|"|>x, {y}: "z" \n <tool_call|><|"|>,b:-1.5e3,c:true,d:null)"),
            parsed(R"({"a": "x, {y}: \"z\" \\n <tool_call|>", "b": -1500.0, "c": true, "d": null})"));
  EXPECT_EQ(arguments(R"(list:[1,<|"|>two<|"|>,[ ],{k:<|"|><|"|>}], inner : {deep:{x:[false]}} )"),
            parsed(R"({"list": [1, "two", [], {"k": ""}], "inner": {"deep": {"x": [false]}}})"));
  EXPECT_EQ(arguments(R"(word:bare text,"quoted key":"a \"b\" <tool_call|>",<|"|>k:1<|"|>:2)"),
            parsed(R"({"word": "bare text", "quoted key": "a \"b\" <tool_call|>", "k:1": 2})"));
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "[";
  EXPECT_THAT(
      read_every_way(reading_of(ToolFormat::kGemma4), "<|tool_call>call:get_time{a:" + deep + "<tool_call|>").calls,
      IsEmpty());
}

TEST(AnswerReading, WhatNamesNoFunctionIsText) {
  // A format without marks: JSON may be what is said.
  for (const char* text : {R"({"name": "Bob", "age": 3})", R"({"name": "get_time", "age": 3})",
                           R"({"name": "delete_everything", "parameters": {"x": 1}})"}) {
    const Read read = read_every_way(reading_of(ToolFormat::kLlama3Json), text);
    EXPECT_THAT(read.calls, IsEmpty()) << text;
    EXPECT_EQ(read.content, text);
  }
  EXPECT_EQ(
      read_every_way(reading_of(ToolFormat::kLlama3Json), R"({"parameters": {}, "name": "get_time"})").calls.size(),
      1U);
  for (const auto& [format, text] :
       {std::pair(ToolFormat::kHermes, R"(<tool_call>{"name": "other", "arguments": {}}</tool_call>)"),
        {ToolFormat::kPythonic, "[other(a=1)]"}}) {
    const Read read = read_every_way(reading_of(format), text);
    EXPECT_THAT(read.calls, IsEmpty()) << text;
    EXPECT_EQ(read.content, text);
  }
}

TEST(AnswerReading, OfSeveralCallsTheFirstIsLeftWhereThereIsToBeOne) {
  for (const auto& [format, text] :
       {std::pair(ToolFormat::kLlama3Json,
                  R"({"name": "get_weather", "parameters": {"a": 1}}; {"name": "get_time", "parameters": {}})"),
        {ToolFormat::kPythonic, "[get_weather(a=1), get_time()]"},
        {ToolFormat::kHermes,
         "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"a\": 1}}</tool_call><tool_call>{\"name\": "
         "\"get_time\", \"arguments\": {}}</tool_call>"}}) {
    AnswerReading reading = reading_of(format);
    EXPECT_EQ(read_every_way(reading, text).calls.size(), 2U) << text;
    reading.parallel = false;
    const Read read = read_every_way(reading, text);
    ASSERT_EQ(read.calls.size(), 1U) << text;
    EXPECT_EQ(read.calls[0].arguments, parsed(R"({"a": 1})"));
  }
}

TEST(AnswerReading, ReasoningIsToldApart) {
  AnswerReading reading = reading_of(ToolFormat::kHermes, ReasoningFormat::kThink);
  Read read = read_every_way(reading,
                             "<think>\nHm, <b>.\n\nYes.\n</think>\n\nIt is sunny.<tool_call>{\"name\": \"get_time\", "
                             "\"arguments\": {}}</tool_call>");
  EXPECT_EQ(read.reasoning, "Hm, <b>.\n\nYes.");
  EXPECT_EQ(read.content, "It is sunny.");
  EXPECT_EQ(read.calls.size(), 1U);
  read = read_every_way(reading, "No thought.");
  EXPECT_EQ(read.reasoning, "");
  EXPECT_EQ(read.content, "No thought.");
  read = read_every_way(reading, "<think>cut in the middle");
  EXPECT_EQ(read.reasoning, "cut in the middle");
  EXPECT_EQ(read.content, "");
  reading.begun = true;
  read = read_every_way(reading, "I go on.</think>Done.");
  EXPECT_EQ(read.reasoning, "I go on.");
  EXPECT_EQ(read.content, "Done.");
  read = read_every_way(reading_of(ToolFormat::kNone, ReasoningFormat::kGranite),
                        "Here is my thought process: think. Here is my response: say.");
  EXPECT_EQ(read.reasoning, "think.");
  EXPECT_EQ(read.content, " say.");
  read = read_every_way(reading_of(ToolFormat::kGemma4, ReasoningFormat::kGemma4),
                        "<|channel>thought\nThink.\n<channel|>Say.<|tool_call>call:get_time{}<tool_call|>");
  EXPECT_EQ(read.reasoning, "Think.");
  EXPECT_EQ(read.content, "Say.");
  EXPECT_EQ(read.calls.size(), 1U);
  read = read_every_way(reading_of(ToolFormat::kNone, ReasoningFormat::kGptOss),
                        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Say.");
  EXPECT_EQ(read.reasoning, "Think.");
  EXPECT_EQ(read.content, "Say.");
}

TEST(AnswerReading, FormatsAreFoundInTemplates) {
  EXPECT_EQ(tool_format_of("{{ messages }}"), ToolFormat::kHermes);
  EXPECT_EQ(tool_format_of("{% if tools %}<tool_call>"), ToolFormat::kHermes);
  EXPECT_EQ(tool_format_of("{% if tools %}<tool_call><function="), ToolFormat::kQwen3Coder);
  EXPECT_EQ(tool_format_of("{% if tools %}[TOOL_CALLS]"), ToolFormat::kMistral);
  EXPECT_EQ(tool_format_of("{% if tools %}<｜tool▁calls▁begin｜> ```json"), ToolFormat::kDeepseekV3);
  EXPECT_EQ(tool_format_of("{% if tools %}<｜tool▁calls▁begin｜>"), ToolFormat::kDeepseekV31);
  EXPECT_EQ(tool_format_of("{% if tools %}<|python_start|>[func_name1("), ToolFormat::kLlama4Pythonic);
  EXPECT_EQ(tool_format_of("{% if tools %}<|action_start|><|plugin|>"), ToolFormat::kInternlm);
  EXPECT_EQ(tool_format_of("{% if tools %}<tool_calls>["), ToolFormat::kJamba);
  EXPECT_EQ(tool_format_of("{% if tools %}<｜tool_sep｜><steptml:invoke name="), ToolFormat::kStep3);
  EXPECT_EQ(tool_format_of("{% if tools %}<|tool_call>call:"), ToolFormat::kGemma4);
  EXPECT_EQ(tool_format_of("{% if tools %}<|tool_call|>["), ToolFormat::kGranite);
  EXPECT_EQ(tool_format_of("{% if tools %}<TOOLCALL>["), ToolFormat::kNemotron);
  EXPECT_EQ(tool_format_of("{% if tools %}<seed:tool_call>\n<function="), ToolFormat::kSeedOss);
  EXPECT_EQ(tool_format_of("{% if tools %}<|tool_list_start|>["), ToolFormat::kLfm2);
  EXPECT_EQ(tool_format_of("{% if tools %}<functions></functions><function_calls>"), ToolFormat::kOlmo3);
  EXPECT_EQ(reasoning_format_of("<seed:think></seed:think>"), ReasoningFormat::kSeedOss);
  EXPECT_EQ(*tool_format("qwen3_xml"), ToolFormat::kQwen3Coder);
  EXPECT_EQ(*tool_format("hunyuan_a13b"), ToolFormat::kJamba);
  EXPECT_EQ(*tool_format("phi4_mini"), ToolFormat::kPhi4Mini);
  EXPECT_EQ(reasoning_format_of("<think></think>"), ReasoningFormat::kThink);
  EXPECT_EQ(reasoning_format_of("<|channel>thought\n<channel|>"), ReasoningFormat::kGemma4);
  EXPECT_FALSE(ends_in_reasoning(ReasoningFormat::kGemma4, "<|turn>model\n<|channel>thought\n<channel|>"));
  EXPECT_EQ(reasoning_format_of("{{ messages }}"), ReasoningFormat::kNone);
  EXPECT_TRUE(ends_in_reasoning(ReasoningFormat::kThink, "<|assistant|><think>\n"));
  EXPECT_FALSE(ends_in_reasoning(ReasoningFormat::kThink, "<|assistant|><think>\n\n</think>\n\n"));
  EXPECT_THAT(tool_format("nonsense").status().message(), HasSubstr("hermes"));
}

TEST(AnswerReading, CallsThatAreShownToAModelAreReadInTheSameForm) {
  const std::vector<std::pair<std::string, json::object>> calls = {
      {"get_weather", {{"city", "Zürich <b>"}, {"days", 3}, {"tags", {"a", nullptr}}}}, {"get_time", {}}};
  for (const FormatCase& one : kFormats) {
    if (one.format == ToolFormat::kGptOss) continue;  // its templates know tools
    const std::string text = calls_text(one.format, calls);
    SCOPED_TRACE(text);
    const Read read = read_every_way(reading_of(one.format), text);
    EXPECT_EQ(read.content, "");
    EXPECT_EQ(read.calls, (std::vector<Call>{{"get_weather", calls[0].second}, {"get_time", json::object()}}));
  }
}

// Whole answers of many pieces in time that grows as the text does: 4 times the text may not take 16 times the time,
// which a parser that looks at everything again would.
TEST(AnswerReading, ALongAnswerIsReadInLinearTime) {
  for (const FormatCase& one : kFormats) {
    SCOPED_TRACE(one.text);
    const AnswerReading reading = reading_of(one.format, ReasoningFormat::kThink);
    const auto parser = make_answer_parser(reading);
    AnswerPiece piece;
    std::string text = one.text;
    const size_t value = text.find("rich <b>");
    text.insert(value, std::string(1 << 20, '<'));
    for (size_t i = 0; i < text.size(); i += 16) parser->push(text.substr(i, 16), piece);
    parser->finish(piece);
    ASSERT_FALSE(piece.calls.empty());
    EXPECT_GT(piece.calls.front().arguments.size(), size_t{1} << 20);
  }
}

TEST(AnswerReading, EveryFormatsConstraintIsOneStructuralTag) {
  for (const FormatCase& one : kFormats) {
    if (one.format == ToolFormat::kGptOss) continue;
    for (const ToolChoice choice : {ToolChoice::kAuto, ToolChoice::kRequired}) {
      AnswerReading reading = reading_of(one.format, ReasoningFormat::kThink);
      reading.choice = choice;
      const auto output = constraint_of(reading, std::nullopt, GrammarLimits{});
      ASSERT_TRUE(output.ok()) << output.status().message();
      const bool whole_answer = one.format == ToolFormat::kLlama3Json || one.format == ToolFormat::kPythonic ||
                                one.format == ToolFormat::kLlama4Pythonic || one.format == ToolFormat::kGemma4;
      EXPECT_EQ(output->has_value(), choice == ToolChoice::kRequired || !whole_answer) << to_string(one.format);
      if (!*output) continue;
      EXPECT_EQ((*output)->kind, StructuredOutput::Kind::kStructuralTag);
    }
  }
}

TEST(AnswerReading, AStrictFunctionsSchemaIsHeededOrRefused) {
  AnswerReading reading = reading_of(ToolFormat::kHermes);
  reading.functions[0].parameters = parsed(R"({"type":"object","not":{}})");
  EXPECT_TRUE(constraint_of(reading, std::nullopt, GrammarLimits{}).ok());
  reading.functions[0].strict = true;
  const auto refused = constraint_of(reading, std::nullopt, GrammarLimits{});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().param(), "tools");
  EXPECT_THAT(refused.status().message(), HasSubstr("get_weather"));
}

}  // namespace
}  // namespace quire::grammar
