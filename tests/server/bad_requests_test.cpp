// Everything a client can get wrong in a body, and what it is told: status, field, and that the server goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

struct BadRequest {
  const char* path;
  std::string body;
  int status;
  const char* param;  // nullptr: null
};

constexpr const char* kChatPath = "/v1/chat/completions";
constexpr const char* kCompletionsPath = "/v1/completions";

std::string hi(std::string_view more) {
  return R"({"messages":[{"role":"user","content":"hi"}],)" + std::string(more) + "}";
}
std::string ab(std::string_view more) {
  return R"({"prompt":"ab",)" + std::string(more) + "}";
}
std::string says(std::string_view messages) {
  return R"({"messages":)" + std::string(messages) + "}";
}

std::vector<BadRequest> bad_requests() {
  std::string deep(100000, '[');
  return {
      // The body.
      {kChatPath, "", 400, nullptr},
      {kChatPath, "{", 400, nullptr},
      {kChatPath, "[]", 400, nullptr},
      {kChatPath, "null", 400, nullptr},
      {kChatPath, "\"text\"", 400, nullptr},
      {kChatPath, "{} {}", 400, nullptr},
      {kChatPath, "{\"messages\":\"\xff\xfe\"}", 400, nullptr},
      {kChatPath, R"({"messages":"\ud800"})", 400, nullptr},
      {kChatPath, deep, 400, nullptr},
      {kCompletionsPath, R"({"prompt":)" + deep + "}", 400, nullptr},
      {kCompletionsPath, ab(R"("temperature":NaN)"), 400, nullptr},
      {kCompletionsPath, ab(R"("temperature":Infinity)"), 400, nullptr},
      // The model.
      {kChatPath, hi(R"("model":"gpt-9")"), 404, "model"},
      {kCompletionsPath, ab(R"("model":5)"), 400, "model"},
      // Messages.
      {kChatPath, "{}", 400, "messages"},
      {kChatPath, says("[]"), 400, "messages"},
      {kChatPath, says("\"hi\""), 400, "messages"},
      {kChatPath, says("[1]"), 400, "messages"},
      {kChatPath, says(R"([{"content":"hi"}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":7,"content":"hi"}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":"","content":"hi"}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":"user"}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":"user","content":null}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":"user","content":7}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":"user","content":[7]}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":"user","content":[{"type":"text"}]}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":"user","content":[{"type":"refusal","text":"hi"}]}])"), 400, "messages"},
      {kChatPath, says(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}])"), 400,
       "messages"},
      // Prompts.
      {kCompletionsPath, "{}", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":null})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":""})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":[]})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":[[]]})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":["a",""]})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":["a",[1]]})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":{"a":1}})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":[1.5]})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":[-1]})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":[257]})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":[99999999999999999999]})", 400, "prompt"},
      {kCompletionsPath, R"({"prompt":[true]})", 400, "prompt"},
      {kCompletionsPath,
       R"({"prompt":[)" +
           [] {
             std::string list = "\"a\"";
             for (int i = 0; i < 1024; ++i) list += ",\"a\"";
             return list;
           }() +
           "]}",
       400, "prompt"},
      {kCompletionsPath, R"({"prompt":")" + std::string(kContext, 'x') + "\"}", 400, "input_tokens"},
      {kCompletionsPath, R"({"prompt":")" + std::string(1 << 20, 'x') + "\"}", 400, "input_tokens"},
      {kChatPath, says(R"([{"role":"user","content":")" + std::string(kContext, 'x') + "\"}]"), 400, "input_tokens"},
      // Sampling.
      {kChatPath, hi(R"("temperature":-0.1)"), 400, "temperature"},
      {kChatPath, hi(R"("temperature":2.1)"), 400, "temperature"},
      {kChatPath, hi(R"("temperature":1e400)"), 400, "temperature"},
      {kChatPath, hi(R"("temperature":1e300)"), 400, "temperature"},
      {kChatPath, hi(R"("temperature":"hot")"), 400, "temperature"},
      {kChatPath, hi(R"("temperature":true)"), 400, "temperature"},
      {kChatPath, hi(R"("top_p":0)"), 400, "top_p"},
      {kChatPath, hi(R"("top_p":1.5)"), 400, "top_p"},
      {kChatPath, hi(R"("top_k":-2)"), 400, "top_k"},
      {kChatPath, hi(R"("top_k":1.5)"), 400, "top_k"},
      {kChatPath, hi(R"("top_k":5000000000)"), 400, "top_k"},
      {kChatPath, hi(R"("min_p":1.5)"), 400, "min_p"},
      {kChatPath, hi(R"("presence_penalty":3)"), 400, "presence_penalty"},
      {kChatPath, hi(R"("frequency_penalty":-3)"), 400, "frequency_penalty"},
      {kChatPath, hi(R"("repetition_penalty":0)"), 400, "repetition_penalty"},
      {kChatPath, hi(R"("seed":1.5)"), 400, "seed"},
      {kChatPath, hi(R"("seed":18446744073709551615)"), 400, "seed"},
      {kChatPath, hi(R"("n":0)"), 400, "n"},
      {kChatPath, hi(R"("n":129)"), 400, "n"},
      {kChatPath, hi(R"("n":1000000)"), 400, "n"},
      {kChatPath, hi(R"("n":-9223372036854775808)"), 400, "n"},
      {kChatPath, hi(R"("max_tokens":0)"), 400, "max_tokens"},
      {kChatPath, hi(R"("max_tokens":-1)"), 400, "max_tokens"},
      {kChatPath, hi(R"("max_completion_tokens":0)"), 400, "max_completion_tokens"},
      {kChatPath, hi(R"("max_completion_tokens":100000)"), 400, "max_completion_tokens"},
      {kCompletionsPath, ab(R"("max_tokens":0)"), 400, "max_tokens"},
      {kCompletionsPath, ab(R"("max_tokens":100000)"), 400, "max_tokens"},
      {kCompletionsPath, ab(R"("max_tokens":2,"min_tokens":3)"), 400, "min_tokens"},
      {kCompletionsPath, ab(R"("min_tokens":-1)"), 400, "min_tokens"},
      {kCompletionsPath, ab(R"("stop":"")"), 400, "stop"},
      {kCompletionsPath, ab(R"("stop":[1])"), 400, "stop"},
      {kCompletionsPath, ab(R"("stop":5)"), 400, "stop"},
      {kCompletionsPath, ab(R"("stop_token_ids":[-1])"), 400, "stop_token_ids"},
      {kCompletionsPath, ab(R"("stop_token_ids":[257])"), 400, "stop_token_ids"},
      {kCompletionsPath, ab(R"("allowed_token_ids":[256],"min_tokens":1)"), 400, "allowed_token_ids"},
      {kCompletionsPath, ab(R"("allowed_token_ids":[97],"bad_words":["a"])"), 400, "allowed_token_ids"},
      {kCompletionsPath, ab(R"("stop_token_ids":"x")"), 400, "stop_token_ids"},
      {kCompletionsPath, ab(R"("logit_bias":[1])"), 400, "logit_bias"},
      {kCompletionsPath, ab(R"("logit_bias":{"a":1})"), 400, "logit_bias"},
      {kCompletionsPath, ab(R"("logit_bias":{"5":"x"})"), 400, "logit_bias"},
      {kCompletionsPath, ab(R"("logit_bias":{"257":1})"), 400, "logit_bias"},
      {kCompletionsPath, ab(R"("logit_bias":{"-1":1})"), 400, "logit_bias"},
      {kCompletionsPath, ab(R"("logit_bias":{"5":1e400})"), 400, "logit_bias"},
      {kCompletionsPath, ab(R"("logprobs":true)"), 400, "logprobs"},
      {kCompletionsPath, ab(R"("logprobs":21)"), 400, "logprobs"},
      {kCompletionsPath, ab(R"("logprobs":-2)"), 400, "logprobs"},
      {kChatPath, hi(R"("logprobs":2)"), 400, "logprobs"},
      {kChatPath, hi(R"("top_logprobs":2)"), 400, "top_logprobs"},
      {kChatPath, hi(R"("logprobs":true,"top_logprobs":21)"), 400, "top_logprobs"},
      {kCompletionsPath, ab(R"("prompt_logprobs":21)"), 400, "prompt_logprobs"},
      {kCompletionsPath, ab(R"("prompt_logprobs":1,"stream":true)"), 400, "prompt_logprobs"},
      {kCompletionsPath, ab(R"("ignore_eos":1)"), 400, "ignore_eos"},
      {kCompletionsPath, ab(R"("skip_special_tokens":"no")"), 400, "skip_special_tokens"},
      // Streams and names.
      {kChatPath, hi(R"("stream":"yes")"), 400, "stream"},
      {kChatPath, hi(R"("stream_options":{"include_usage":true})"), 400, "stream_options"},
      {kChatPath, hi(R"("stream":true,"stream_options":{"include_usage":1})"), 400, "stream_options"},
      {kChatPath, hi(R"("request_id":"a b")"), 400, "request_id"},
      // Known, and not built.
      {kChatPath, hi(R"("tools":[])"), 400, "tools"},
      {kChatPath, hi(R"("tools":[{"type":"web_search"}])"), 400, "tools"},
      {kChatPath, hi(R"("tools":[{"type":"function","function":{"name":""}}])"), 400, "tools"},
      {kChatPath, hi(R"("tools":[{"type":"function","function":{"name":"a<b"}}])"), 400, "tools"},
      {kChatPath, hi(R"("tools":[{"type":"function","function":{"name":"f","parameters":7}}])"), 400, "tools"},
      {kChatPath,
       hi(R"("tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"f"}}])"), 400,
       "tools"},
      {kChatPath, hi(R"("tool_choice":"always","tools":[{"type":"function","function":{"name":"f"}}])"), 400,
       "tool_choice"},
      {kChatPath, hi(R"("tool_choice":{"type":"function"},"tools":[{"type":"function","function":{"name":"f"}}])"), 400,
       "tool_choice"},
      {kChatPath,
       hi(R"("tool_choice":{"type":"function","function":{"name":"g"}},"tools":[{"type":"function","function":{"name":"f"}}])"),
       400, "tool_choice"},
      {kChatPath,
       hi(R"("response_format":{"type":"json_object"},"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}])"),
       400, "tool_choice"},
      {kChatPath, hi(R"("thinking_token_budget":10)"), 400, "thinking_token_budget"},
      {kChatPath, hi(R"("tool_choice":"auto")"), 400, "tool_choice"},
      {kChatPath, hi(R"("response_format":{"type":"xml"})"), 400, "response_format"},
      {kChatPath, hi(R"("response_format":{"schema":{}})"), 400, "response_format"},
      {kChatPath, hi(R"("response_format":{"type":"json_schema"})"), 400, "response_format"},
      {kChatPath, hi(R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})"), 400, "response_format"},
      {kChatPath, hi(R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})"), 400,
       "structured_outputs"},
      {kChatPath, hi(R"("response_format":{"type":"json_object"},"ignore_eos":true)"), 400, "ignore_eos"},
      {kChatPath, hi(R"("response_format":{"type":"structural_tag","structures":[]})"), 400, "response_format"},
      {kChatPath, hi(R"("structured_outputs":{"regex":"a(b"})"), 400, "structured_outputs"},
      {kChatPath, hi(R"("structured_outputs":{"regex":"a","json":{}})"), 400, "structured_outputs"},
      {kChatPath, hi(R"("structured_outputs":{"lark":"a"})"), 400, "structured_outputs"},
      {kChatPath, hi(R"("structured_outputs":{"regex":"(?=a)b"})"), 400, "structured_outputs"},
      {kCompletionsPath, ab(R"("guided_json":{"not":{}})"), 400, "guided_json"},
      {kCompletionsPath, ab(R"("guided_json":{"$ref":"#"})"), 400, "guided_json"},
      {kCompletionsPath, ab(R"("guided_json":7)"), 400, "guided_json"},
      {kCompletionsPath, ab(R"("guided_regex":"(foo**")"), 400, "guided_regex"},
      {kCompletionsPath, ab(R"("guided_choice":[1])"), 400, "guided_choice"},
      {kCompletionsPath, ab(R"("guided_grammar":"root ::= x")"), 400, "guided_grammar"},
      {kCompletionsPath, ab(R"("suffix":"x")"), 400, "suffix"},
      {kChatPath, hi(R"("audio":{"voice":"x"})"), 400, "audio"},
      {kChatPath, hi(R"("modalities":["text","audio"])"), 400, "modalities"},
      {kCompletionsPath, ab(R"("logits_processors":["x"])"), 400, "logits_processors"},
      {kChatPath, hi(R"("add_special_tokens":true)"), 400, "add_special_tokens"},
      {kChatPath, hi(R"("chat_template":"{{ 1 }}")"), 400, "chat_template"},
      {kChatPath, hi(R"("chat_template_kwargs":[1])"), 400, "chat_template_kwargs"},
      {kChatPath, hi(R"("chat_template_kwargs":{"chat_template":"x"})"), 400, "chat_template_kwargs"},
      {kChatPath, hi(R"("continue_final_message":true,"add_generation_prompt":true)"), 400, "continue_final_message"},
      // Tokens.
      {"/tokenize", "{}", 400, "prompt"},
      {"/tokenize", R"({"prompt":5})", 400, "prompt"},
      {"/tokenize", R"({"prompt":"a","model":"x"})", 404, "model"},
      {"/detokenize", "{}", 400, "tokens"},
      {"/detokenize", R"({"tokens":[-1]})", 400, "tokens"},
      {"/detokenize", R"({"tokens":["a"]})", 400, "tokens"},
  };
}

TEST_F(ServerTest, EveryBadRequestIsToldWhatIsWrongOnOneConnection) {
  start();
  Client client(port());
  for (const BadRequest& bad : bad_requests()) {
    SCOPED_TRACE(std::string(bad.path) + " " + bad.body.substr(0, 120));
    ASSERT_TRUE(client.send(http_request("POST", bad.path, bad.body)));
    const ClientResponse response = client.receive();
    ASSERT_EQ(response.status, bad.status) << response.body;
    const boost::json::value body = response.json();
    ASSERT_TRUE(body.is_object() && body.as_object().contains("error")) << response.body;
    const boost::json::object& error = body.at("error").as_object();
    EXPECT_EQ(error.at("type"), bad.status == 404 ? "NotFoundError" : "BadRequestError");
    EXPECT_GT(text_of(error.at("message")).size(), 10u);
    EXPECT_TRUE(error.at("code").is_null() || error.at("code").is_string());
    if (bad.param == nullptr) {
      EXPECT_TRUE(error.at("param").is_null()) << response.body;
    } else {
      EXPECT_EQ(text_of(error.at("param")), bad.param) << response.body;
    }
  }
  ASSERT_TRUE(client.send(http_request("POST", kCompletionsPath, R"({"prompt":"abc","max_tokens":2})")));
  EXPECT_EQ(client.receive().status, 200);
  expect_idle();
}

TEST_F(ServerTest, TheOverflowOfTheContextSaysSoInTheKnownWords) {
  start();
  const auto error = complete(R"({"prompt":")" + std::string(300, 'x') + "\"}").json().at("error");
  EXPECT_THAT(text_of(error.at("message")),
              testing::StartsWith("This model's maximum context length is 256 tokens. However, "));
  EXPECT_EQ(error.at("code"), "context_length_exceeded");
}

TEST_F(ServerTest, FieldsThatAskForNothingAreAccepted) {
  start();
  const auto response = chat(hi(
      R"("model":"","max_tokens":2,"user":"me","metadata":{"a":"b"},"store":true,"tools":null,"response_format":{"type":"text"},)"
      R"("best_of":1,"logit_bias":{},"stop":null,"top_k":-1,"n":1.0,"priority":0,"bad_words":[],"suffix":null,"service_tier":"auto",)"
      R"("modalities":["text"],"guided_json":null,"length_penalty":1.0,"unheard_of":{"x":[1]},"parallel_tool_calls":true)"));
  EXPECT_EQ(response.status, 200) << response.body;
  const auto tools =
      chat(hi(R"("max_tokens":2,"tool_choice":"none","tools":[{"type":"function","function":{"name":"f"}}])"));
  EXPECT_EQ(tools.status, 200) << tools.body;
}

TEST_F(ServerTest, AFullQueueIsToldToComeBack) {
  start({}, {.max_num_seqs = 1, .max_num_queued_reqs = 2});
  executor_->step_microseconds = 2000;
  std::vector<std::unique_ptr<Client>> clients;
  int refused = 0;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<Client>(port()));
    clients.back()->send(http_request("POST", kCompletionsPath, R"({"prompt":"abc","max_tokens":20})"));
  }
  for (auto& client : clients) {
    const auto response = client->receive();
    if (response.status == 200) continue;
    ++refused;
    EXPECT_EQ(response.status, 429) << response.body;
    EXPECT_EQ(response.headers.count("retry-after"), 1u);
  }
  EXPECT_GT(refused, 0);
  expect_idle();
}

}  // namespace
}  // namespace quire::server
