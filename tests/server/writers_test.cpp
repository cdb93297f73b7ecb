// Reasoning, text and calls of tools in the shapes of /v1/responses and /v1/messages, streamed and whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/messages_writer.h"
#include "server/responses_writer.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::ElementsAre;

// "hm" is thought, "so" is said, f({"x":1}) and g({}) are called.
std::vector<engine::OutputDelta> deltas() {
  std::vector<engine::OutputDelta> out(6);
  out[0].reasoning = "h";
  out[1].reasoning = "m";
  out[2].text = "so";
  out[3].tool_calls = {{.index = 0, .id = "call_1", .name = "f", .arguments = ""}};
  out[4].tool_calls = {{.index = 0, .id = "", .name = "", .arguments = "{\"x\":1}"},
                       {.index = 1, .id = "call_2", .name = "g", .arguments = "{}"}};
  out[5].finish = FinishReason::kStop;
  return out;
}

class WritersTest : public testing::Test {
 protected:
  WritersTest() : answer_({{.ids = {1, 2, 3}}}, 1) { answer_.choices.front().num_tool_calls = 2; }

  AnswerContext context(bool stream) const {
    AnswerContext out;
    out.id = "id";
    out.model = "m";
    out.stream = stream;
    return out;
  }
  std::vector<json::value> streamed(AnswerWriter& writer) {
    std::string events;
    writer.begin(answer_, events);
    for (const engine::OutputDelta& delta : deltas()) writer.piece(answer_, answer_.choices.front(), delta, events);
    writer.end(answer_, events);
    std::vector<json::value> out;
    for (size_t at = events.find("data: "); at != std::string::npos; at = events.find("data: ", at + 1)) {
      out.push_back(json::parse(events.substr(at + 6, events.find('\n', at) - at - 6)));
    }
    return out;
  }
  json::value whole(AnswerWriter& writer) {
    engine::OutputDelta all;
    for (engine::OutputDelta& delta : deltas()) append(all, std::move(delta));
    return json::parse(writer.whole(answer_, std::span(&all, 1)).body);
  }
  static std::vector<std::string> types(const std::vector<json::value>& events) {
    std::vector<std::string> out;
    for (const json::value& event : events) out.emplace_back(std::string_view(event.at("type").as_string()));
    return out;
  }

  Answer answer_;
};

// Without the ids that are drawn.
json::value nameless(json::value output) {
  for (json::value& item : output.as_array()) item.as_object().erase("id");
  return output;
}

const json::value kOutput = json::parse(R"([
    {"type":"reasoning","status":"completed","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
    {"type":"message","status":"completed","role":"assistant",
     "content":[{"type":"output_text","annotations":[],"logprobs":[],"text":"so"}]},
    {"type":"function_call","status":"completed","call_id":"call_1","name":"f","arguments":"{\"x\":1}"},
    {"type":"function_call","status":"completed","call_id":"call_2","name":"g","arguments":"{}"}])");

TEST_F(WritersTest, AResponsesItemsAreTheSameStreamedAndWhole) {
  json::object message;
  const auto finished = [&](const json::object&, const json::object& last) { message = last; };
  ResponsesWriter streaming(context(true), {{"id", "resp_1"}}, finished);
  const auto events = streamed(streaming);
  EXPECT_THAT(
      types(events),
      ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                  "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.delta",
                  "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
                  "response.output_item.added", "response.content_part.added", "response.output_text.delta",
                  "response.output_text.done", "response.content_part.done", "response.output_item.done",
                  "response.output_item.added", "response.function_call_arguments.delta",
                  "response.function_call_arguments.done", "response.output_item.done", "response.output_item.added",
                  "response.function_call_arguments.delta", "response.function_call_arguments.done",
                  "response.output_item.done", "response.completed"));
  for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i].at("sequence_number"), i);
  const json::value& output = events.back().at("response").at("output");
  EXPECT_EQ(nameless(output), kOutput);
  // Each item is done as it is in the end, at its place.
  for (const json::value& event : events) {
    if (event.at("type") != "response.output_item.done") continue;
    EXPECT_EQ(event.at("item"), output.at(event.at("output_index").to_number<size_t>()));
  }
  EXPECT_EQ(json::value(message), json::parse(R"({"role":"assistant","content":"so","reasoning_content":"hm",
      "tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},
                    {"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}]})"));
  ResponsesWriter all(context(false), {{"id", "resp_1"}}, finished);
  EXPECT_EQ(nameless(whole(all).at("output")), kOutput);
}

TEST_F(WritersTest, AMessagesBlocksAreTheSameStreamedAndWhole) {
  MessagesWriter all(context(false), 100);
  const json::value message = whole(all);
  EXPECT_EQ(message.at("content"), json::parse(R"([{"type":"thinking","thinking":"hm","signature":""},
      {"type":"text","text":"so"},{"type":"tool_use","id":"call_1","name":"f","input":{"x":1}},
      {"type":"tool_use","id":"call_2","name":"g","input":{}}])"));
  EXPECT_EQ(message.at("stop_reason"), "tool_use");
  MessagesWriter streaming(context(true), 100);
  const auto events = streamed(streaming);
  EXPECT_THAT(types(events),
              ElementsAre("message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
                          "content_block_stop", "content_block_start", "content_block_delta", "content_block_stop",
                          "content_block_start", "content_block_delta", "content_block_stop", "content_block_start",
                          "content_block_delta", "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(events[9].at("index"), 2);
  EXPECT_EQ(events[9].at("content_block"), json::parse(R"({"type":"tool_use","id":"call_1","name":"f","input":{}})"));
  EXPECT_EQ(events[10].at("delta"), (json::value{{"type", "input_json_delta"}, {"partial_json", "{\"x\":1}"}}));
  EXPECT_EQ(events[15].at("delta").at("stop_reason"), "tool_use");
}

TEST_F(WritersTest, ReasoningThatIsNotToBeToldIsLeftOut) {
  AnswerContext quiet = context(false);
  quiet.include_reasoning = false;
  MessagesWriter message(quiet, 100);
  EXPECT_EQ(whole(message).at("content").at(0).at("type"), "text");
  ResponsesWriter response(quiet, {}, [](const json::object&, const json::object&) {});
  EXPECT_EQ(whole(response).at("output").at(0).at("type"), "message");
}

}  // namespace
}  // namespace quire::server
