// What an operator sets for requests that do not say, and how the server looks from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

class OperatorDefaults : public ServerTest {
 protected:
  json::value answer(std::string_view body) {
    const ClientResponse response = chat(body);
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }
  int64_t prompt_tokens(std::string_view body) {
    return answer(body).at("usage").at("prompt_tokens").to_number<int64_t>();
  }
  Status refusal(ServerConfig config) {
    config.host = "127.0.0.1";
    config.port = 0;
    config.served_model_names = {"alphabet"};
    auto engine = engine::Engine::create({}, alphabet_text(), std::make_unique<AlphabetExecutor>());
    return Server::start(config, **engine).status();
  }
};

TEST_F(OperatorDefaults, TheRoleOfAnswersIsTheOperators) {
  start({.response_role = "bot"});
  const json::value whole = answer(R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})");
  EXPECT_EQ(text_of(whole.at("choices").at(0).at("message").at("role")), "bot");
  const std::string stream =
      chat(R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": true})").body;
  EXPECT_THAT(stream, HasSubstr(R"("role":"bot")"));
}

TEST_F(OperatorDefaults, TemplatesSeeTheOperatorsVariablesUnlessTheRequestSetsThem) {
  start({.default_chat_template_kwargs = R"({"word": "ab"})", .trust_request_chat_template = true});
  const std::string ask =
      R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "chat_template": "{{ word }}")";
  EXPECT_EQ(prompt_tokens(ask + "}"), 2);
  EXPECT_EQ(prompt_tokens(ask + R"(, "chat_template_kwargs": {"word": "abcde"}})"), 5);
  EXPECT_THAT(refusal({.default_chat_template_kwargs = "[1]"}).message(), HasSubstr("--default-chat-template-kwargs"));
  EXPECT_THAT(refusal({.default_chat_template_kwargs = R"({"chat_template": ""})"}).message(),
              HasSubstr("must not hold"));
}

TEST_F(OperatorDefaults, ToolsThatMayNotBeCalledAreShownUnlessTheOperatorSaysOtherwise) {
  const std::string ask =
      R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "tool_choice": "none",)"
      R"( "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],)"
      R"( "chat_template": "{% if tools %}tools{% else %}no{% endif %}"})";
  start({.trust_request_chat_template = true});
  EXPECT_EQ(prompt_tokens(ask), 5);
  server_.reset();
  start({.exclude_tools_when_none = true, .trust_request_chat_template = true});
  EXPECT_EQ(prompt_tokens(ask), 2);
}

TEST_F(OperatorDefaults, TokensAreSpelledByTheirIdsUnlessTheRequestSaysOtherwise) {
  start({.return_tokens_as_token_ids = true});
  const std::string ask = R"({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "logprobs": true)";
  EXPECT_THAT(chat(ask + "}").body, HasSubstr("token_id:"));
  EXPECT_THAT(chat(ask + R"(, "return_tokens_as_token_ids": false})").body, testing::Not(HasSubstr("token_id:")));
}

TEST_F(OperatorDefaults, UnderAProxysPathRequestsComeWithItAndWithout) {
  start({.root_path = "/llm"});
  for (const char* path : {"/v1/models", "/llm/v1/models", "/llm/", "/"}) EXPECT_EQ(get(port(), path).status, 200);
  for (const char* path : {"/llmv1/models", "/llm/llm/v1/models", "/other/v1/models"}) {
    EXPECT_EQ(get(port(), path).status, 404) << path;
  }
  const json::value document = json::parse(get(port(), "/llm/openapi.json").body);
  EXPECT_EQ(text_of(document.at("servers").at(0).at("url")), "/llm");
}

TEST_F(OperatorDefaults, APathThatIsNoneIsRefused) {
  for (const char* path : {"llm", "/", "/llm/"}) {
    EXPECT_EQ(refusal({.root_path = path}).code(), StatusCode::kInvalidArgument) << path;
  }
}

TEST_F(OperatorDefaults, TheDescriptionOfTheApiCanBeLeftOut) {
  start({.enable_openapi = false});
  EXPECT_EQ(get(port(), "/openapi.json").status, 404);
}

TEST(Loopback, IsWhatNobodyElseReaches) {
  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"0.0.0.0", "::", "192.168.1.2", "example.org", ""}) EXPECT_FALSE(is_loopback(host)) << host;
}

}  // namespace
}  // namespace quire::server
