// What clients of OpenAI's SDKs, of vLLM and of DeepSeek look for in chats, and send back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "server/openai_writer.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::HasSubstr;
using testing::MatchesRegex;

class CompatTest : public ServerTest {
 protected:
  // What a template makes of messages; an error's message where it makes nothing of them.
  std::string rendered(std::string_view chat_template, std::string_view messages) {
    const json::value body = {{"messages", json::parse(messages)}, {"chat_template", chat_template}};
    const auto response = post(port(), "/tokenize", json::serialize(body));
    if (response.status != 200) return text_of(response.json().at("error").at("message"));
    std::string out;
    const json::value answer = response.json();
    for (const json::value& id : answer.at("tokens").as_array()) out += static_cast<char>(id.to_number<int>());
    return out;
  }
  void start_trusting() {
    ServerConfig config;
    config.trust_request_chat_template = true;
    start(config);
  }
};

constexpr std::string_view kThoughts =
    "{% for m in messages %}[{{ m.reasoning }}|{{ m.reasoning_content }}|{{ m.content }}]{% endfor %}";

TEST_F(CompatTest, WhatAnAssistantThoughtReachesTheTemplateByBothNames) {
  start_trusting();
  for (const char* name : {"reasoning", "reasoning_content"}) {
    EXPECT_EQ(rendered(kThoughts, fmt::format(R"([{{"role":"assistant","content":"so","{}":"hm"}}])", name)),
              "[hm|hm|so]");
  }
  EXPECT_EQ(rendered(kThoughts, R"([{"role":"assistant","content":"so","reasoning":null,"reasoning_content":"hm"}])"),
            "[hm|hm|so]");
  EXPECT_EQ(rendered(kThoughts, R"([{"role":"assistant","content":"so","reasoning":"a","reasoning_content":"b"}])"),
            "[a|b|so]");
  EXPECT_EQ(rendered(kThoughts, R"([{"role":"assistant","content":"so"}])"), "[||so]");
  EXPECT_THAT(rendered(kThoughts, R"([{"role":"assistant","content":"so","reasoning_content":7}])"),
              HasSubstr("\"reasoning_content\" must be a string"));
}

// As ChatML of Qwen has it: roles that it does not name are left out.
constexpr std::string_view kThreeRoles =
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}{{ m.role }}:{{ m.content }};{% endif %}"
    "{% endfor %}";
// As Gemma's and others: a system message stands at the beginning, or is refused.
constexpr std::string_view kSystemFirst =
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% "
    "endif "
    "%}{{ m.role }}:{{ m.content }};{% endfor %}";
constexpr std::string_view kKnowsDevelopers =
    "{% for m in messages %}{% if m.role == 'developer' %}# {{ m.content }};{% else %}{{ m.role }}:{{ m.content }};"
    "{% endif %}{% endfor %}";
constexpr std::string_view kFirstSystemOnly =
    "{% for m in messages %}{% if loop.first or m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor "
    "%}";

TEST_F(CompatTest, ADevelopersMessageIsASystemsWhereTheTemplateKnowsNoDevelopers) {
  start_trusting();
  const std::string_view first = R"([{"role":"developer","content":"be terse"},{"role":"user","content":"hi"}])";
  EXPECT_EQ(rendered(kThreeRoles, first), "system:be terse;user:hi;");
  EXPECT_EQ(rendered(kSystemFirst, first), "system:be terse;user:hi;");
  EXPECT_EQ(rendered(kKnowsDevelopers, first), "# be terse;user:hi;");
  const std::string_view both = R"([{"role":"system","content":"you are A"},{"role":"developer",
      "content":[{"type":"text","text":"be terse"}]},{"role":"user","content":"hi"}])";
  EXPECT_EQ(rendered(kThreeRoles, both), "system:you are A\n\nbe terse;user:hi;");
  EXPECT_EQ(rendered(kSystemFirst, both), "system:you are A\n\nbe terse;user:hi;");
  EXPECT_EQ(rendered(kKnowsDevelopers, both), "system:you are A;# be terse;user:hi;");
}

TEST_F(CompatTest, ADevelopersMessageThatTheTemplateWouldDropIsRefused) {
  start_trusting();
  const std::string_view later = R"([{"role":"user","content":"hi"},{"role":"developer","content":"be terse"}])";
  EXPECT_EQ(rendered(kThreeRoles, later), "user:hi;system:be terse;");
  EXPECT_THAT(rendered(kFirstSystemOnly, later), HasSubstr("role developer"));
  EXPECT_THAT(rendered(kSystemFirst, later), HasSubstr("system first"));
}

TEST_F(CompatTest, ReasoningIsToldByBothNames) {
  AnswerContext context;
  context.id = "id";
  context.model = "m";
  const Answer answer({{.ids = {1, 2, 3}}}, 1);
  engine::OutputDelta delta;
  delta.reasoning = "hm";
  ChatWriter whole(context, 1);
  const json::value body = json::parse(whole.whole(answer, std::span(&delta, 1)).body);
  const json::value& message = body.at("choices").at(0).at("message");
  EXPECT_EQ(message.at("reasoning"), "hm");
  EXPECT_EQ(message.at("reasoning_content"), "hm");
  EXPECT_TRUE(message.at("refusal").is_null());
  context.stream = true;
  ChatWriter streaming(context, 1);
  std::string events;
  streaming.piece(answer, answer.choices.front(), delta, events);
  EXPECT_EQ(json::parse(events.substr(6)).at("choices").at(0).at("delta"),
            (json::value{{"reasoning", "hm"}, {"reasoning_content", "hm"}}));
}

TEST_F(CompatTest, AnswersSayWhatMadeThemAndInWhichTier) {
  start();
  const std::string ask = R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":3)";
  const json::value plain = chat(ask + "}").json();
  const std::string fingerprint = text_of(plain.at("system_fingerprint"));
  EXPECT_THAT(fingerprint, MatchesRegex("quire-.*-[0-9a-f]+"));
  EXPECT_FALSE(plain.as_object().contains("service_tier"));
  const json::value tiered = chat(ask + R"(,"service_tier":"priority"})").json();
  EXPECT_EQ(tiered.at("service_tier"), "default");
  EXPECT_EQ(tiered.at("system_fingerprint"), plain.at("system_fingerprint"));
  for (const std::string& event : chat(ask + R"(,"stream":true,"service_tier":"auto"})").events()) {
    if (event == "[DONE]") continue;
    const json::value chunk = json::parse(event);
    EXPECT_EQ(chunk.at("system_fingerprint"), plain.at("system_fingerprint"));
    EXPECT_EQ(chunk.at("service_tier"), "default");
  }
  EXPECT_EQ(complete(R"({"prompt":"a"})").json().at("system_fingerprint"), plain.at("system_fingerprint"));
  EXPECT_EQ(chat(ask + R"(,"service_tier":"gold"})").json().at("error").at("param"), "service_tier");
}

TEST_F(CompatTest, MoreStopStringsThanOpenAisFourAreTaken) {
  start();
  const json::value answer = complete(R"({"prompt":"abc","stop":["1","2","3","4","5","fg"]})").json();
  EXPECT_EQ(answer.at("choices").at(0).at("text"), "de");
  EXPECT_EQ(answer.at("choices").at(0).at("stop_reason"), "fg");
  json::array many(1025, json::value("x"));
  const json::value error =
      complete(json::serialize(json::value{{"prompt", "abc"}, {"stop", many}})).json().at("error");
  EXPECT_EQ(error.at("param"), "stop");
  EXPECT_THAT(text_of(error.at("message")), HasSubstr("1025 strings; at most 1024"));
}

}  // namespace
}  // namespace quire::server
