// Kinds of attack that are known of other engines, each by its letter (docs/attacks.md): T of text, P of parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace attacks {

using testing::AnyOf;
using testing::HasSubstr;

constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"hi"}])";

class AttackTest : public ServerTest {
 protected:
  std::vector<int> tokens_of_chat(const std::string& kwargs) {
    const auto response = post(port(), "/tokenize", "{" + std::string(kMessages) + kwargs + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    const boost::json::value answer = response.json();
    std::vector<int> tokens;
    for (const boost::json::value& id : answer.at("tokens").as_array()) tokens.push_back(id.to_number<int>());
    return tokens;
  }
  static std::string text(size_t size) { return std::string(size, 'x'); }
  int completed(const std::string& fields) { return complete("{" + fields + "}").status; }
};

// T7
TEST_F(AttackTest, VariablesOfARequestDoNotOverrideWhatTheServerSays) {
  start();
  const std::vector<int> plain = tokens_of_chat("");
  for (const char* variable :
       {R"("messages":[])", R"("messages":[{"role":"system","content":"evil"}])", R"("add_generation_prompt":false)",
        R"("bos_token":"<evil>")", R"("eos_token":["evil"])"}) {
    EXPECT_EQ(tokens_of_chat(R"(,"chat_template_kwargs":{)" + std::string(variable) + "}"), plain) << variable;
  }
  for (const char* reserved : {"chat_template", "tokenize"}) {
    const auto response = chat(R"({"max_tokens":1,"chat_template_kwargs":{")" + std::string(reserved) +
                               R"(":"{{ x }}"},)" + std::string(kMessages) + "}");
    EXPECT_EQ(response.status, 400) << reserved;
    EXPECT_EQ(text_of(response.json().at("error").at("param")), "chat_template_kwargs");
  }
  // Names that templates call are names like any other.
  for (const char* name :
       {"range", "namespace", "raise_exception", "strftime_now", "loop", "self", "__class__", "cycler"}) {
    const auto response = chat(R"({"max_tokens":1,"chat_template_kwargs":{")" + std::string(name) + R"(":{"a":[1]}},)" +
                               std::string(kMessages) + "}");
    EXPECT_EQ(response.status, 200) << name << response.body;
  }
  expect_idle();
}

// P5: as many log-probabilities as a prompt of the whole context may have come, one more is refused before it costs
// anything.
TEST_F(AttackTest, LogprobsOfALongPromptAreGivenUpToTheBoundAndRefusedBeyondIt) {
  start();
  const auto response =
      complete(R"({"max_tokens":1,"prompt_logprobs":20,"n":4,"prompt":")" + text(kContext - 1) + "\"}");
  ASSERT_EQ(response.status, 200) << response.body;
  const boost::json::value answer = response.json();
  const boost::json::array& choices = answer.at("choices").as_array();
  ASSERT_EQ(choices.size(), 4u);
  for (const boost::json::value& choice : choices)
    EXPECT_EQ(choice.at("prompt_logprobs").as_array().size(), static_cast<size_t>(kContext - 1));
  for (const char* asked : {R"("prompt_logprobs":21)", R"("prompt_logprobs":-2)", R"("prompt_logprobs":1000000)",
                            R"("echo":true,"logprobs":21)"}) {
    EXPECT_EQ(completed(std::string(asked) + R"(,"max_tokens":1,"prompt":")" + text(kContext - 1) + "\""), 400)
        << asked;
  }
  expect_idle();

  server_.reset();
  start({}, {.max_logprobs = -1, .max_request_bytes = (1 << 16) + (8 << 10)});
  const std::string whole = R"("prompt_logprobs":-1,"max_tokens":1,"prompt":")";
  EXPECT_EQ(completed(whole + text(4) + "\""), 200);
  const auto refused = complete("{" + whole + text(kContext - 1) + "\"}");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(text_of(refused.json().at("error").at("param")), "prompt_logprobs");
  expect_idle();
}

// P6: the context is of 256 tokens, a byte each.
TEST_F(AttackTest, APromptAtTheLimitAndOneTokenToEitherSideOfIt) {
  start();
  const auto with_answer_of = [&](size_t prompt, const char* answer) {
    return completed(R"("max_tokens":)" + std::string(answer) + R"(,"prompt":")" + text(prompt) + "\"");
  };
  constexpr size_t kFull = kContext;
  EXPECT_EQ(with_answer_of(0, "1"), 400) << "empty";
  EXPECT_EQ(completed(R"("max_tokens":1,"prompt":[])"), 400) << "empty";
  EXPECT_EQ(with_answer_of(3, "0"), 400) << "nothing is asked for";
  EXPECT_EQ(with_answer_of(kFull - 2, "1"), 200);
  EXPECT_EQ(with_answer_of(kFull - 1, "1"), 200) << "the last token has room";
  EXPECT_EQ(with_answer_of(kFull, "1"), 400) << "it has none";
  EXPECT_EQ(with_answer_of(kFull + 1, "1"), 400);
  EXPECT_EQ(with_answer_of(kFull - 3, "2"), 200);
  EXPECT_EQ(with_answer_of(kFull - 2, "2"), 200) << "both together fill the context";
  const auto cut = complete(R"({"max_tokens":2,"prompt":")" + text(kFull - 1) + "\"}").json();
  EXPECT_EQ(cut.at("usage").at("completion_tokens"), 1) << "the answer ends where the context does";
  EXPECT_EQ(text_of(cut.at("choices").at(0).at("finish_reason")), "length");
  EXPECT_EQ(with_answer_of(100'000, "1"), 400);
  // The same of ids, which are not counted by the tokenizer.
  for (const auto& [count, status] : {std::pair(kFull - 1, 200), std::pair(kFull, 400), std::pair(kFull + 1, 400)}) {
    std::string ids = "120";
    for (size_t i = 1; i < count; ++i) ids += ",120";
    EXPECT_EQ(completed(R"("max_tokens":1,"prompt":[)" + ids + "]"), status) << count;
  }
  // And of a chat, whose template says more than the message.
  const size_t around = tokens_of_chat("").size() - 2;
  const auto chat_of = [&](size_t content) {
    return chat(R"({"max_tokens":1,"messages":[{"role":"user","content":")" + text(content) + "\"}]}").status;
  };
  EXPECT_EQ(chat_of(kFull - 1 - around), 200);
  EXPECT_EQ(chat_of(kFull - around), 400);
  EXPECT_EQ(chat_of(kFull + 1 - around), 400);
  expect_idle();
}

// P8: there is no transfer of KV blocks between servers, so what would steer one is refused by its name.
TEST_F(AttackTest, ParametersOfATransferOfKvBlocksAreRefusedByName) {
  start();
  const std::vector<std::pair<std::string, std::string>> endpoints = {
      {"/v1/completions", R"("prompt":"ab","max_tokens":1)"},
      {"/v1/chat/completions", R"("max_tokens":1,)" + std::string(kMessages)},
      {"/v1/responses", R"("input":"hi","max_output_tokens":1)"},
      {"/v1/messages", R"("max_tokens":1,)" + std::string(kMessages)}};
  for (const auto& [path, fields] : endpoints) {
    for (const char* hostile :
         {R"({"do_remote_prefill":true,"remote_block_ids":[0,-1,2147483648],"remote_host":"169.254.169.254"})",
          R"({"remote_engine_id":"../../etc/passwd","remote_port":22})", R"({"a":1})", R"([1])", R"("x")", "1",
          "true"}) {
      const auto response = post(port(), path, "{" + fields + R"(,"kv_transfer_params":)" + hostile + "}");
      EXPECT_EQ(response.status, 400) << path << " " << hostile;
      EXPECT_THAT(response.body, HasSubstr("kv_transfer_params is not supported")) << path << " " << hostile;
    }
    EXPECT_EQ(post(port(), path, "{" + fields + R"(,"kv_transfer_params":null})").status, 200) << path;
  }
  expect_idle();
}

}  // namespace attacks

}  // namespace
}  // namespace quire::server
