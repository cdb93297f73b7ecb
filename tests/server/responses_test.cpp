// /v1/responses: what comes back, what is kept and for whom.
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/response_store.h"
#include "server/responses_schema.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// The chat template writes "user:hi;>": 9 tokens.
constexpr size_t kHiInputTokens = 9;

class ResponsesTest : public ServerTest {
 protected:
  ClientResponse create(std::string_view body, std::string_view fields = "") {
    return post(port(), "/v1/responses", body, fields);
  }
  static std::string id_of(const ClientResponse& response) { return text_of(response.json().at("id")); }
  ClientResponse request(std::string_view method, const std::string& path, std::string_view fields = "") {
    Client client(port());
    client.send(http_request(method, path, "", fields));
    return client.receive();
  }
  // A response in the background once it is over.
  json::value ended(const std::string& id) {
    for (int i = 0; i < 2500; ++i) {
      json::value response = get(port(), "/v1/responses/" + id).json();
      if (response.at("status") != "in_progress" && response.at("status") != "queued") return response;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ADD_FAILURE() << "response " << id << " does not end";
    return nullptr;
  }
};

std::string output_text(const json::value& response) {
  return text_of(response.at("output").at(0).at("content").at(0).at("text"));
}

TEST_F(ResponsesTest, AStringIsAnsweredWhole) {
  start();
  const auto answer = create(R"({"model":"abc","input":"hi","max_output_tokens":5,"metadata":{"a":"b"}})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json::value response = answer.json();
  EXPECT_THAT(text_of(response.at("id")), StartsWith("resp_"));
  EXPECT_EQ(response.at("object"), "response");
  EXPECT_EQ(response.at("model"), "abc");
  EXPECT_EQ(response.at("status"), "incomplete");
  EXPECT_EQ(response.at("incomplete_details").at("reason"), "max_output_tokens");
  EXPECT_EQ(response.at("metadata").at("a"), "b");
  EXPECT_EQ(response.at("max_output_tokens"), 5);
  EXPECT_EQ(output_text(response), letters(kHiInputTokens, 5));
  EXPECT_EQ(response.at("output").at(0).at("role"), "assistant");
  EXPECT_EQ(response.at("output").at(0).at("status"), "incomplete");
  EXPECT_EQ(response.at("usage").at("input_tokens"), kHiInputTokens);
  EXPECT_EQ(response.at("usage").at("output_tokens"), 5);
  EXPECT_EQ(response.at("usage").at("total_tokens"), kHiInputTokens + 5);
}

TEST_F(ResponsesTest, ItemsAndInstructionsAreTheSameConversationAsAChat) {
  start();
  const auto chat_text = [&](std::string_view messages) {
    const auto response = chat(R"({"max_tokens":4,"messages":)" + std::string(messages) + "}");
    return text_of(response.json().at("choices").at(0).at("message").at("content"));
  };
  const auto response_text = [&](std::string_view fields) {
    const auto response = create(R"({"max_output_tokens":4,)" + std::string(fields) + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    return output_text(response.json());
  };
  EXPECT_EQ(response_text(R"("instructions":"be","input":[{"role":"user","content":"hi"},
      {"type":"message","role":"assistant","content":[{"type":"output_text","text":"yes"}]},
      {"role":"developer","content":[{"type":"input_text","text":"one"},{"type":"input_text","text":"two"}]}])"),
            chat_text(R"([{"role":"system","content":"be"},{"role":"user","content":"hi"},
      {"role":"assistant","content":"yes"},{"role":"system","content":"one\ntwo"}])"));
}

TEST_F(ResponsesTest, AStreamsEventsAreNumberedAndSayWhatTheWholeSays) {
  start();
  const auto events = create(R"({"input":"hi","max_output_tokens":30,"stream":true})").events();
  ASSERT_GE(events.size(), 9u);
  std::vector<std::string> types;
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    const json::value event = json::parse(events[i]);
    EXPECT_EQ(event.at("sequence_number"), i);
    const std::string type = text_of(event.at("type"));
    if (type == "response.output_text.delta") text += text_of(event.at("delta"));
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  EXPECT_THAT(types,
              ElementsAre("response.created", "response.in_progress", "response.output_item.added",
                          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
                          "response.content_part.done", "response.output_item.done", "response.incomplete"));
  EXPECT_EQ(text, letters(kHiInputTokens, 30));
  const json::value last = json::parse(events.back()).at("response");
  EXPECT_EQ(output_text(last), text);
  EXPECT_EQ(last.at("usage").at("output_tokens"), 30);
  EXPECT_EQ(get(port(), "/v1/responses/" + text_of(last.at("id"))).json(), last);
}

TEST_F(ResponsesTest, AnEndOfTheModelsOwnIsCompleted) {
  start();
  // The template ends with '>': an answer that ends at once needs a stop string instead.
  const json::value response = create(R"({"input":"hi","stop":["jk"]})").json();
  EXPECT_EQ(response.at("status"), "completed");
  EXPECT_TRUE(response.at("incomplete_details").is_null());
  EXPECT_FALSE(response.at("completed_at").is_null());
}

TEST_F(ResponsesTest, AStoredResponseIsThereUntilItIsDeleted) {
  start();
  const auto made = create(R"({"input":"hi","max_output_tokens":3})");
  const std::string path = "/v1/responses/" + id_of(made);
  EXPECT_EQ(get(port(), path).json(), made.json());
  const json::value items = get(port(), path + "/input_items").json();
  EXPECT_EQ(items.at("object"), "list");
  ASSERT_EQ(items.at("data").as_array().size(), 1u);
  EXPECT_EQ(items.at("data").at(0).at("content").at(0), (json::value{{"type", "input_text"}, {"text", "hi"}}));
  EXPECT_EQ(items.at("has_more"), false);
  EXPECT_EQ(request("POST", path + "/cancel").status, 400);  // it was not in the background
  const auto deleted = request("DELETE", path);
  EXPECT_EQ(deleted.json().at("deleted"), true);
  EXPECT_EQ(get(port(), path).status, 404);
  EXPECT_EQ(get(port(), path + "/input_items").status, 404);
  EXPECT_EQ(request("DELETE", path).status, 404);
  const auto unkept = create(R"({"input":"hi","max_output_tokens":3,"store":false})");
  EXPECT_EQ(get(port(), "/v1/responses/" + id_of(unkept)).status, 404);
}

TEST_F(ResponsesTest, InputItemsComeInPages) {
  start();
  const auto made = create(R"({"max_output_tokens":3,"input":[{"role":"user","content":"a"},
      {"role":"user","content":"b"},{"role":"user","content":"c"}]})");
  const std::string path = "/v1/responses/" + id_of(made) + "/input_items";
  const auto texts = [&](const std::string& query) {
    const auto page = get(port(), path + query);
    EXPECT_EQ(page.status, 200) << page.body;
    std::string out;
    const json::value body = page.json();
    for (const json::value& item : body.at("data").as_array()) {
      out += text_of(item.at("content").at(0).at("text"));
    }
    return out + (body.at("has_more").as_bool() ? "+" : "");
  };
  EXPECT_EQ(texts(""), "cba");
  EXPECT_EQ(texts("?order=asc&limit=2"), "ab+");
  const json::value first = get(port(), path + "?order=asc&limit=2").json();
  EXPECT_EQ(texts("?order=asc&after=" + text_of(first.at("last_id"))), "c");
  for (const char* query : {"?limit=0", "?limit=x", "?limit=101", "?order=up", "?after=nobody"}) {
    EXPECT_EQ(get(port(), path + query).status, 400) << query;
  }
}

TEST_F(ResponsesTest, AResponseGoesOnFromAnotherAlsoWhenThatIsDeletedLater) {
  start();
  const auto first = create(R"({"input":"hi","max_output_tokens":3,"instructions":"gone"})");
  const std::string said = output_text(first.json());
  const auto second = create(R"({"input":"and","max_output_tokens":4,"previous_response_id":")" + id_of(first) + "\"}");
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(second.json().at("previous_response_id"), first.json().at("id"));
  // Instructions are not handed on.
  const std::string prompt = "user:hi;assistant:" + said + ";user:and;>";
  EXPECT_EQ(second.json().at("usage").at("input_tokens"), prompt.size());
  EXPECT_EQ(output_text(second.json()), letters(prompt.size(), 4));
  request("DELETE", "/v1/responses/" + id_of(first));
  const auto third = create(R"({"input":"x","max_output_tokens":1,"previous_response_id":")" + id_of(second) + "\"}");
  EXPECT_EQ(third.json().at("usage").at("input_tokens"),
            prompt.size() - 1 + std::string("assistant:;user:x;>").size() + 4);
  const auto unknown = create(R"({"input":"x","previous_response_id":"resp_0"})");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json().at("error").at("param"), "previous_response_id");
}

TEST_F(ResponsesTest, AResponseInTheBackgroundIsFetchedLater) {
  start();
  const auto queued = create(R"({"input":"hi","max_output_tokens":5,"background":true})");
  ASSERT_EQ(queued.status, 200) << queued.body;
  EXPECT_EQ(queued.json().at("status"), "queued");
  const json::value response = ended(id_of(queued));
  EXPECT_EQ(response.at("status"), "incomplete");
  EXPECT_EQ(response.at("background"), true);
  EXPECT_EQ(output_text(response), letters(kHiInputTokens, 5));
  EXPECT_EQ(request("POST", "/v1/responses/" + id_of(queued) + "/cancel").json(), response);  // too late
  EXPECT_EQ(create(R"({"input":"hi","background":true,"store":false})").status, 400);
  EXPECT_EQ(create(R"({"input":"hi","background":true,"stream":true})").status, 400);
}

TEST_F(ResponsesTest, ACancelledResponseStopsWorking) {
  start();
  executor_->step_microseconds = 20000;
  const auto queued = create(R"({"input":"hi","background":true})");
  const std::string path = "/v1/responses/" + id_of(queued);
  const auto cancelled = request("POST", path + "/cancel");
  EXPECT_EQ(cancelled.json().at("status"), "cancelled");
  EXPECT_EQ(get(port(), path).json().at("status"), "cancelled");
  expect_idle();
  const auto on = create(R"({"input":"x","previous_response_id":")" + id_of(queued) + "\"}");
  EXPECT_EQ(on.status, 400);
  EXPECT_THAT(on.body, HasSubstr("no answer to go on from"));
}

TEST_F(ResponsesTest, ADeletedResponseInTheBackgroundStopsWorking) {
  start();
  executor_->step_microseconds = 20000;
  const auto queued = create(R"({"input":"hi","background":true})");
  EXPECT_EQ(request("DELETE", "/v1/responses/" + id_of(queued)).status, 200);
  EXPECT_EQ(get(port(), "/v1/responses/" + id_of(queued)).status, 404);
  expect_idle();
}

TEST_F(ResponsesTest, AFailureIsTold) {
  start();
  EXPECT_EQ(create(R"({"input":"a#"})").status, 500);
  const auto events = create(R"({"input":"a#","stream":true})").events();
  const json::value last = json::parse(events.back());
  EXPECT_EQ(last.at("type"), "response.failed");
  EXPECT_EQ(last.at("response").at("status"), "failed");
  EXPECT_THAT(events.back(), testing::Not(HasSubstr("secret")));
  const auto queued = create(R"({"input":"a#","background":true})");
  EXPECT_EQ(ended(id_of(queued)).at("status"), "failed");
}

TEST_F(ResponsesTest, ResponsesOfOneKeyDoNotExistForAnother) {
  ServerConfig config;
  config.api_keys = {"one", "two"};
  start(config);
  const std::string one = "Authorization: Bearer one\r\n";
  const std::string two = "Authorization: Bearer two\r\n";
  const auto made = create(R"({"input":"hi","max_output_tokens":3})", one);
  ASSERT_EQ(made.status, 200) << made.body;
  const std::string path = "/v1/responses/" + id_of(made);
  EXPECT_EQ(get(port(), path, one).status, 200);
  EXPECT_EQ(get(port(), path, two).status, 404);
  EXPECT_EQ(get(port(), path + "/input_items", two).status, 404);
  EXPECT_EQ(request("DELETE", path, two).status, 404);
  EXPECT_EQ(create(R"({"input":"x","previous_response_id":")" + id_of(made) + "\"}", two).status, 404);
  EXPECT_EQ(get(port(), path, one).status, 200);
}

TEST_F(ResponsesTest, TheOldestAreForgotten) {
  ServerConfig config;
  config.max_stored_responses = 2;
  start(config);
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(id_of(create(R"({"input":"hi","max_output_tokens":1})")));
  EXPECT_EQ(get(port(), "/v1/responses/" + ids[0]).status, 404);
  EXPECT_EQ(get(port(), "/v1/responses/" + ids[1]).status, 200);
  EXPECT_EQ(get(port(), "/v1/responses/" + ids[2]).status, 200);
}

TEST_F(ResponsesTest, TruncationDropsTheOldestMessages) {
  start();
  std::string items = R"({"role":"user","content":"first"})";
  for (int i = 0; i < 30; ++i) items += R"(,{"role":"user","content":"0123456789"})";
  const std::string body = R"("max_output_tokens":2,"instructions":"be","input":[)" + items + "]}";
  const auto refused = create("{" + body);
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json().at("error").at("code"), "context_length_exceeded");
  const auto answered = create(R"({"truncation":"auto",)" + body);
  ASSERT_EQ(answered.status, 200) << answered.body;
  // "system:be;", 14 messages of 16 bytes, ">": as many as fit beside two tokens of 256.
  EXPECT_EQ(answered.json().at("usage").at("input_tokens"), 10 + 15 * 16 + 1);
}

// What is left begins with a user's message, as there are templates that take nothing else.
TEST_F(ResponsesTest, TruncationDropsWholeTurns) {
  start();
  std::string items = R"({"role":"user","content":"first"})";
  for (int i = 0; i < 20; ++i) {
    items +=
        R"(,{"role":"assistant","content":"abc"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"})";
    items += R"(,{"type":"function_call_output","call_id":"c","output":"1"},{"role":"user","content":"0123456789"})";
  }
  const auto answered = create(R"({"truncation":"auto","max_output_tokens":2,"input":[)" + items + "]}");
  ASSERT_EQ(answered.status, 200) << answered.body;
  const std::string turn =
      "user:0123456789;assistant:abc\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>;"
      "user:<tool_response>\n1\n</tool_response>;";
  const size_t whole = (254 - std::string("user:0123456789;>").size()) / turn.size();
  EXPECT_EQ(answered.json().at("usage").at("input_tokens"),
            whole * turn.size() + std::string("user:0123456789;>").size());
}

TEST_F(ResponsesTest, ReasoningIsOfTheMessageItCameWith) {
  using Messages = json::array;
  const auto messages = [](const char* input) {
    auto request = parse_responses_request(
        json::parse(std::string(R"({"model":"m","input":)") + input + "}").as_object(), Messages(), SchemaLimits());
    EXPECT_TRUE(request.ok()) << request.status().message();
    return request.ok() ? request->chat.messages : Messages();
  };
  const char* kCall = R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"})";
  const char* kOutput = R"({"type":"function_call_output","call_id":"c","output":"1"})";
  const auto thought = [](const char* text) {
    return std::string(R"({"type":"reasoning","summary":[{"type":"summary_text","text":")") + text + R"("}]})";
  };
  // Behind a text and before a call: of that turn, not of a later one.
  Messages found = messages((std::string(R"([{"role":"user","content":"a"},{"role":"assistant","content":"one"},)") +
                             thought("R1") + "," + kCall + "," + kOutput + R"(,{"role":"assistant","content":"end"}])")
                                .c_str());
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[1].at("reasoning_content"), "R1");
  EXPECT_FALSE(found[3].as_object().contains("reasoning_content"));
  // Before a user's message: of the turn before. Of two none is lost; null is as left out.
  found =
      messages((std::string(R"([{"role":"user","content":"a"},{"role":"assistant","content":"one"},)") + thought("R1") +
                R"(,{"type":"reasoning","content":null,"summary":[{"type":"summary_text","text":"R2"}]})" +
                R"(,{"role":"user","content":"b"}])")
                   .c_str());
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[1].at("reasoning_content"), "R1\nR2");
  // What is said behind a call stands beside it, so that its result follows it.
  found = messages((std::string(R"([{"role":"user","content":"a"},)") + kCall +
                    R"(,{"role":"assistant","content":"first"},)" + kOutput + "]")
                       .c_str());
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[1].at("content"), "first");
  EXPECT_TRUE(found[1].as_object().contains("tool_calls"));
  EXPECT_EQ(found[2].at("role"), "tool");
}

TEST_F(ResponsesTest, WhatIsNotBuiltIsRefusedByName) {
  start();
  const std::pair<const char*, const char*> kCases[] = {
      {R"("input":1)", "input"},
      {R"("input":[])", "input"},
      {R"("input":[{"type":"item_reference","id":"x"}])", "input"},
      {R"("input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}])", "input"},
      {R"("input":[{"role":"boss","content":"x"}])", "input"},
      {R"("input":"x","conversation":"conv_1")", "conversation"},
      {R"("input":"x","prompt":{"id":"p"})", "prompt"},
      {R"("input":"x","truncation":"some")", "truncation"},
      {R"("input":"x","include":["reasoning.encrypted_content"])", "include"},
      {R"("input":"x","top_logprobs":2)", "top_logprobs"},
      {R"("input":"x","tools":[{"type":"web_search"}])", "tools"},
      {R"("input":"x","service_tier":"flex")", "service_tier"},
      {R"("input":"x","max_output_tokens":0)", "max_output_tokens"},
      {R"("input":"x","max_output_tokens":100000)", "max_output_tokens"},
      {R"("input":"x","temperature":9)", "temperature"},
      {R"("input":"x","metadata":{"a":1})", "metadata"},
      {R"("input":"x","text":{"verbosity":"low"})", "text.verbosity"},
      {R"("input":"x","model":"none")", "model"},
      {R"("input":"x","typical_p":5)", "typical_p"},
      {R"("input":"x","dry_multiplier":-1)", "dry_multiplier"},
      {R"("input":"x","guided_json":5)", "guided_json"},
      {R"("input":"x","response_format":{"type":"json_object"})", "response_format"},
      {R"("input":"x","use_beam_search":true)", "use_beam_search"},
      {R"("input":"x","n":2)", "n"},
      {R"("input":"x","prompt_logprobs":0)", "prompt_logprobs"},
  };
  for (const auto& [fields, param] : kCases) {
    const auto response = create("{" + std::string(fields) + "}");
    EXPECT_THAT(response.status, testing::AnyOf(400, 404)) << fields;
    EXPECT_EQ(response.json().at("error").at("param"), param) << response.body;
  }
  expect_idle();
}

TEST_F(ResponsesTest, LogprobsAreBesideTheText) {
  start();
  const auto response =
      create(R"({"input":"hi","max_output_tokens":3,"include":["message.output_text.logprobs"],"top_logprobs":2})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value body = response.json();
  const json::value& logprobs = body.at("output").at(0).at("content").at(0).at("logprobs");
  ASSERT_EQ(logprobs.as_array().size(), 3u);
  EXPECT_EQ(logprobs.at(0).at("top_logprobs").as_array().size(), 2u);
}

StoredResponse stored(const std::string& id, size_t bytes, bool in_progress = false) {
  StoredResponse response{.id = id, .body = std::string(bytes - id.size(), 'x')};
  response.in_progress = in_progress;
  return response;
}

TEST(ResponseStoreTest, CountAndBytesAreBounded) {
  ResponseStore store(3, 100);
  for (const char* id : {"a", "b", "c", "d"}) ASSERT_TRUE(store.add(stored(id, 10)).ok());
  EXPECT_EQ(store.size(), 3u);
  EXPECT_FALSE(store.find("a", 0).ok());
  ASSERT_TRUE(store.add(stored("e", 85)).ok());
  EXPECT_EQ(store.size(), 2u);
  EXPECT_TRUE(store.find("d", 0).ok());
  ASSERT_TRUE(store.add(stored("f", 1000)).ok());  // never kept, and drives nobody out
  EXPECT_EQ(store.size(), 2u);
}

TEST(ResponseStoreTest, WhatIsInProgressStays) {
  ResponseStore store(2, 100);
  ASSERT_TRUE(store.add(stored("a", 10, true)).ok());
  ASSERT_TRUE(store.add(stored("b", 10, true)).ok());
  EXPECT_EQ(store.add(stored("c", 10, true)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(store.size(), 2u);
  store.finish("a", "done", "[]");
  ASSERT_TRUE(store.add(stored("d", 10, true)).ok());
  EXPECT_FALSE(store.find("a", 0).ok());
  store.finish("nobody", "done", "[]");
  EXPECT_EQ(store.size(), 2u);
}

}  // namespace
}  // namespace quire::server
