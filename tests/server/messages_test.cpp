// Anthropic's /v1/messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* kHiMessage = R"("messages":[{"role":"user","content":"hi"}])";
constexpr size_t kHiMessageTokens = 9;  // "user:hi;>"

class MessagesTest : public ServerTest {
 protected:
  ClientResponse create(std::string_view fields, std::string_view headers = "") {
    return post(port(), "/v1/messages", "{" + std::string(fields) + "}", headers);
  }
};

TEST_F(MessagesTest, AMessageIsAnsweredWhole) {
  start();
  const auto answer = create(std::string(kHiMessage) + R"(,"model":"abc","max_tokens":5)");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json::value message = answer.json();
  EXPECT_THAT(text_of(message.at("id")), StartsWith("msg_"));
  EXPECT_EQ(message.at("type"), "message");
  EXPECT_EQ(message.at("role"), "assistant");
  EXPECT_EQ(message.at("model"), "abc");
  EXPECT_EQ(message.at("content"),
            (json::value{json::object{{"type", "text"}, {"text", letters(kHiMessageTokens, 5)}}}));
  EXPECT_EQ(message.at("stop_reason"), "max_tokens");
  EXPECT_TRUE(message.at("stop_sequence").is_null());
  EXPECT_EQ(message.at("usage").at("input_tokens"), kHiMessageTokens);
  EXPECT_EQ(message.at("usage").at("output_tokens"), 5);
}

TEST_F(MessagesTest, BlocksAndSystemAreTheSameConversationAsAChat) {
  start();
  const auto counted = [&](std::string_view fields) {
    const auto response = post(port(), "/v1/messages/count_tokens", "{" + std::string(fields) + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json().at("input_tokens").to_number<size_t>();
  };
  EXPECT_EQ(counted(kHiMessage), kHiMessageTokens);
  EXPECT_EQ(counted(R"("system":"be","messages":[{"role":"user","content":"hi"}])"),
            std::string("system:be;user:hi;>").size());
  EXPECT_EQ(counted(R"("system":[{"type":"text","text":"be","cache_control":{"type":"ephemeral"}}],
      "messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])"),
            std::string("system:be;user:a\nb;>").size());
  EXPECT_EQ(counted(R"("messages":[{"role":"user","content":"hi"},
      {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"I"},
                                     {"type":"tool_use","id":"t1","name":"f","input":{"x":1}}]},
      {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"42"}]},
                                {"type":"text","text":"so?"}]}])"),
            // The template knows nothing of tools: what was called is put into words.
            std::string("user:hi;assistant:I\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\":1}}\n</tool_call>;"
                        "user:<tool_response>\n42\n</tool_response>;user:so?;>")
                .size());
}

TEST_F(MessagesTest, ALastMessageOfTheAssistantIsGoneOnFrom) {
  start();
  const auto answer =
      create(R"("max_tokens":3,"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"so"}])");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(text_of(answer.json().at("content").at(0).at("text")),
            letters(std::string("user:hi;assistant:so").size(), 3));
}

TEST_F(MessagesTest, AStreamsEventsSayWhatTheWholeSays) {
  start();
  const auto response = create(std::string(kHiMessage) + R"(,"max_tokens":30,"stream":true)");
  EXPECT_THAT(response.body, StartsWith("event: message_start\ndata: "));
  std::vector<std::string> types;
  std::string text;
  json::value delta;
  for (const std::string& payload : response.events()) {
    const json::value event = json::parse(payload);
    const std::string type = text_of(event.at("type"));
    if (type == "content_block_delta") text += text_of(event.at("delta").at("text"));
    if (type == "message_delta") delta = event;
    if (types.empty() || types.back() != type) types.push_back(type);
  }
  EXPECT_THAT(types, ElementsAre("message_start", "ping", "content_block_start", "content_block_delta",
                                 "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(text, letters(kHiMessageTokens, 30));
  EXPECT_EQ(delta.at("delta").at("stop_reason"), "max_tokens");
  EXPECT_EQ(delta.at("usage").at("output_tokens"), 30);
}

TEST_F(MessagesTest, StopSequencesAndTheContextsEndAreTold) {
  start();
  json::value message = create(std::string(kHiMessage) + R"(,"max_tokens":50,"stop_sequences":["no","lm"])").json();
  EXPECT_EQ(message.at("stop_reason"), "stop_sequence");
  EXPECT_EQ(message.at("stop_sequence"), "lm");
  EXPECT_EQ(message.at("content").at(0).at("text"), "jk");
  message = create(std::string(kHiMessage) + R"(,"max_tokens":256)").json();
  EXPECT_EQ(message.at("stop_reason"), "model_context_window_exceeded");
}

TEST_F(MessagesTest, ErrorsHaveAnthropicsShape) {
  ServerConfig config;
  config.api_keys = {"secret"};
  start(config);
  const std::string key = "x-api-key: secret\r\n";
  const auto expect_error = [](const ClientResponse& response, int status, const char* type) {
    EXPECT_EQ(response.status, status) << response.body;
    const json::value body = response.json();
    EXPECT_EQ(body.at("type"), "error");
    EXPECT_EQ(body.at("error").at("type"), type);
    EXPECT_FALSE(text_of(body.at("error").at("message")).empty());
  };
  EXPECT_EQ(create(std::string(kHiMessage) + R"(,"max_tokens":2)", key).status, 200);
  EXPECT_EQ(create(std::string(kHiMessage) + R"(,"max_tokens":2)", "Authorization: Bearer secret\r\n").status, 200);
  expect_error(create(kHiMessage), 401, "authentication_error");
  expect_error(create(kHiMessage, "x-api-key: wrong\r\n"), 401, "authentication_error");
  expect_error(create(kHiMessage, key + "x-api-key: secret\r\n"), 400, "invalid_request_error");
  expect_error(create(kHiMessage, key), 400, "invalid_request_error");
  expect_error(create(std::string(kHiMessage) + R"(,"max_tokens":2,"model":"none")", key), 404, "not_found_error");
  expect_error(get(port(), "/v1/messages", key), 405, "invalid_request_error");
  expect_error(get(port(), "/v1/messages/nowhere", key), 404, "not_found_error");
  expect_error(create(R"("max_tokens":2,"messages":[{"role":"user","content":"a#"}])", key), 500, "api_error");
  EXPECT_EQ(get(port(), "/v1/messagesx", key).json().at("error").at("type"), "NotFoundError");
}

TEST_F(MessagesTest, AFailureInAStreamIsAnErrorEvent) {
  start();
  const auto response = create(R"("max_tokens":2,"stream":true,"messages":[{"role":"user","content":"a#"}])");
  EXPECT_THAT(response.body, HasSubstr("event: error\ndata: "));
  EXPECT_EQ(json::parse(response.events().back()).at("error").at("type"), "api_error");
}

TEST_F(MessagesTest, WhatIsNotBuiltIsRefusedByName) {
  start();
  const std::pair<const char*, const char*> kCases[] = {
      {R"("container":"c")", "container"},
      {R"("mcp_servers":[{"url":"x"}])", "mcp_servers"},
      {R"("thinking":{"type":"enabled","budget_tokens":1024})", "thinking"},
      {R"("service_tier":"fast")", "service_tier"},
      {R"("tool_choice":{"type":"sometimes"})", "tool_choice"},
      {R"("tools":[{"type":"bash_20250124","name":"bash"}])", "tools"},
      {R"("stop_sequences":["a",7])", "stop"},
      {R"("temperature":7)", "temperature"},
      {R"("stop":"x")", "stop_sequences"},
      {R"("mirostat":9)", "mirostat"},
      {R"("logit_bias":{"99999":1})", "logit_bias"},
      {R"("guided_regex":5)", "guided_regex"},
      {R"("truncate_prompt_tokens":4)", "truncate_prompt_tokens"},
      {R"("use_beam_search":true)", "use_beam_search"},
  };
  for (const auto& [fields, name] : kCases) {
    const auto response = create(std::string(kHiMessage) + R"(,"max_tokens":2,)" + fields);
    EXPECT_EQ(response.status, 400) << fields << response.body;
    EXPECT_THAT(text_of(response.json().at("error").at("message")), HasSubstr(name));
  }
  const std::pair<const char*, const char*> kMessages[] = {
      {R"([{"role":"user","content":[{"type":"image","source":{}}]}])", "image"},
      {R"([{"role":"tool","content":"x"}])", "role"},
      {R"([{"role":"user"}])", "content"},
      {R"([{"role":"user","content":[]}])", "content"},
      {R"([{"role":"user","content":[{"type":"tool_use","id":"1","name":"f","input":{}}]}])", "tool_use"},
      {R"([])", "messages"},
  };
  for (const auto& [messages, name] : kMessages) {
    const auto response = create(R"("max_tokens":2,"messages":)" + std::string(messages));
    EXPECT_EQ(response.status, 400) << messages << response.body;
    EXPECT_THAT(text_of(response.json().at("error").at("message")), HasSubstr(name));
  }
  EXPECT_EQ(create(std::string(kHiMessage) + R"(,"max_tokens":2,"thinking":{"type":"disabled"})").status, 200);
  expect_idle();
}

TEST_F(MessagesTest, WhatOnlyOtherModelsCanDoIsNotImplemented) {
  start();
  for (const char* path : {"/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank",
                           "/v2/rerank", "/v1/embed", "/v2/embed"}) {
    const auto response = post(port(), path, R"({"input":"x"})");
    EXPECT_EQ(response.status, 501) << path;
    EXPECT_EQ(response.json().at("error").at("type"), "NotImplementedError");
    EXPECT_THAT(response.body, HasSubstr("pooling head"));
  }
}

}  // namespace
}  // namespace quire::server
