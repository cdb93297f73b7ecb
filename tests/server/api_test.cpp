// What the endpoints answer.
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// The chat template writes "user:hi;>": 9 tokens.
constexpr const char* kHi = R"("messages":[{"role":"user","content":"hi"}])";
constexpr size_t kHiTokens = 9;

TEST_F(ServerTest, AChatIsAnsweredWhole) {
  start();
  const auto response = chat(std::string("{") + kHi + R"(,"model":"abc","max_tokens":5})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = response.json();
  EXPECT_THAT(text_of(answer.at("id")), StartsWith("chatcmpl-"));
  EXPECT_EQ(answer.at("object"), "chat.completion");
  EXPECT_EQ(answer.at("model"), "abc");
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(text_of(choice.at("message").at("content")), letters(kHiTokens, 5));
  EXPECT_EQ(choice.at("message").at("role"), "assistant");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_TRUE(choice.at("stop_reason").is_null());
  EXPECT_TRUE(choice.at("logprobs").is_null());
  EXPECT_EQ(answer.at("usage").at("prompt_tokens"), kHiTokens);
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 5);
  EXPECT_EQ(answer.at("usage").at("total_tokens"), kHiTokens + 5);
}

TEST_F(ServerTest, AStreamedChatHasTheSameTextInOrder) {
  start();
  const auto response =
      chat(std::string("{") + kHi + R"(,"max_tokens":30,"stream":true,"stream_options":{"include_usage":true}})");
  ASSERT_EQ(response.status, 200);
  EXPECT_THAT(response.headers.at("content-type"), StartsWith("text/event-stream"));
  const auto events = response.events();
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  const json::value opening = json::parse(events.front());
  EXPECT_EQ(opening.at("object"), "chat.completion.chunk");
  EXPECT_EQ(opening.at("choices").at(0).at("delta"), (json::value{{"role", "assistant"}, {"content", ""}}));
  EXPECT_TRUE(opening.at("usage").is_null());
  std::string text;
  for (size_t i = 1; i + 2 < events.size(); ++i) {
    const json::value chunk = json::parse(events[i]);
    EXPECT_EQ(chunk.at("id"), opening.at("id"));
    const json::value& choice = chunk.at("choices").at(0);
    if (choice.at("delta").as_object().contains("content")) text += text_of(choice.at("delta").at("content"));
    EXPECT_EQ(choice.at("finish_reason").is_null(), i + 3 < events.size());
  }
  EXPECT_EQ(text, letters(kHiTokens, 30));
  const json::value last = json::parse(events[events.size() - 2]);
  EXPECT_TRUE(last.at("choices").as_array().empty());
  EXPECT_EQ(last.at("usage").at("completion_tokens"), 30);
}

TEST_F(ServerTest, ContinuousUsageGrowsWithTheAnswer) {
  start();
  const auto events =
      chat(std::string("{") + kHi +
           R"(,"max_tokens":8,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}})")
          .events();
  int64_t before = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const int64_t now = json::parse(events[i]).at("usage").at("completion_tokens").to_number<int64_t>();
    EXPECT_GE(now, before);
    before = now;
  }
  EXPECT_EQ(before, 8);
}

TEST_F(ServerTest, TheEndOfSequenceAndStopsAreTold) {
  start();
  json::value choice = complete(R"({"prompt":"abc!"})").json().at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_TRUE(choice.at("stop_reason").is_null());
  EXPECT_EQ(choice.at("text"), "");
  choice = complete(R"({"prompt":"abc","stop":"fg"})").json().at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "de");
  EXPECT_EQ(choice.at("stop_reason"), "fg");
  choice =
      complete(R"({"prompt":"abc","stop":["zz","fg"],"include_stop_str_in_output":true})").json().at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "defg");
  choice = complete(R"({"prompt":"abc","stop_token_ids":[103]})").json().at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "stop");
  EXPECT_EQ(choice.at("stop_reason"), 103);
  expect_idle();
}

TEST_F(ServerTest, CompletionsTakeEveryShapeOfPrompt) {
  start();
  const auto text_at = [&](std::string_view prompt, size_t i) {
    const auto response = complete(std::string(R"({"max_tokens":3,"prompt":)") + std::string(prompt) + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(response.json().at("choices").at(i).at("index"), i);
    return text_of(response.json().at("choices").at(i).at("text"));
  };
  EXPECT_EQ(text_at(R"("abc")", 0), letters(3, 3));
  EXPECT_EQ(text_at(R"(["abc","abcd"])", 1), letters(4, 3));
  EXPECT_EQ(text_at("[1,2,3,4,5]", 0), letters(5, 3));
  EXPECT_EQ(text_at("[[1],[1,2,3,4,5,6]]", 1), letters(6, 3));
}

TEST_F(ServerTest, CompletionsGiveSixteenTokensUnlessAsked) {
  start();
  EXPECT_EQ(complete(R"({"prompt":"abc"})").json().at("usage").at("completion_tokens"), 16);
}

TEST_F(ServerTest, AChatGoesOnToTheEndOfTheContextUnlessAsked) {
  start();
  const json::value answer = chat(std::string("{") + kHi + "}").json();
  EXPECT_EQ(answer.at("usage").at("total_tokens"), kContext);
  EXPECT_EQ(answer.at("choices").at(0).at("finish_reason"), "length");
}

TEST_F(ServerTest, MaxCompletionTokensWins) {
  start();
  const auto answer = chat(std::string("{") + kHi + R"(,"max_tokens":9,"max_completion_tokens":4})").json();
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 4);
}

TEST_F(ServerTest, SeveralChoicesComeByIndex) {
  start();
  const json::value whole = complete(R"({"prompt":["a","ab"],"n":3,"max_tokens":2,"seed":7})").json();
  ASSERT_EQ(whole.at("choices").as_array().size(), 6u);
  EXPECT_EQ(text_of(whole.at("choices").at(2).at("text")), letters(1, 2));
  EXPECT_EQ(text_of(whole.at("choices").at(5).at("text")), letters(2, 2));
  EXPECT_EQ(whole.at("usage").at("prompt_tokens"), 3);
  EXPECT_EQ(whole.at("usage").at("completion_tokens"), 12);

  std::vector<std::string> texts(6);
  const auto events = complete(R"({"prompt":["a","ab"],"n":3,"max_tokens":40,"stream":true})").events();
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const json::value choice = json::parse(event).at("choices").at(0);
    texts[choice.at("index").to_number<size_t>()] += text_of(choice.at("text"));
  }
  EXPECT_THAT(texts, ElementsAre(letters(1, 40), letters(1, 40), letters(1, 40), letters(2, 40), letters(2, 40),
                                 letters(2, 40)));
}

TEST_F(ServerTest, ChatLogprobsHaveTokensBytesAndAlternatives) {
  start();
  const json::value answer =
      chat(std::string("{") + kHi + R"(,"max_tokens":2,"logprobs":true,"top_logprobs":2})").json();
  const json::value& content = answer.at("choices").at(0).at("logprobs").at("content");
  ASSERT_EQ(content.as_array().size(), 2u);
  EXPECT_EQ(text_of(content.at(0).at("token")), letters(kHiTokens, 1));
  EXPECT_EQ(content.at(0).at("logprob"), -0.5);
  EXPECT_EQ(content.at(0).at("bytes").at(0), static_cast<int>(next_letter(kHiTokens)));
  EXPECT_EQ(content.at(0).at("top_logprobs").as_array().size(), 2u);
  EXPECT_EQ(content.at(0).at("top_logprobs").at(1).at("logprob"), -1.5);
}

TEST_F(ServerTest, CompletionLogprobsAreParallelLists) {
  start();
  const json::value logprobs =
      complete(R"({"prompt":"abc","max_tokens":3,"logprobs":2})").json().at("choices").at(0).at("logprobs");
  EXPECT_EQ(json::serialize(logprobs.at("tokens")), R"(["d","e","f"])");
  EXPECT_EQ(json::serialize(logprobs.at("text_offset")), "[0,1,2]");
  EXPECT_EQ(logprobs.at("token_logprobs").at(0), -0.5);
  EXPECT_EQ(logprobs.at("top_logprobs").at(0), (json::value{{"d", -0.5}, {"e", -1.5}}));
  const json::value by_id =
      complete(R"({"prompt":"abc","max_tokens":1,"logprobs":0,"return_tokens_as_token_ids":true})")
          .json()
          .at("choices")
          .at(0)
          .at("logprobs");
  EXPECT_EQ(json::serialize(by_id.at("tokens")), R"(["token_id:100"])");
}

TEST_F(ServerTest, EchoPutsThePromptBeforeTheAnswer) {
  start();
  json::value choice =
      complete(R"({"prompt":"abc","max_tokens":2,"echo":true,"logprobs":1})").json().at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "abcde");
  EXPECT_EQ(json::serialize(choice.at("logprobs").at("tokens")), R"(["a","b","c","d","e"])");
  EXPECT_EQ(json::serialize(choice.at("logprobs").at("text_offset")), "[0,1,2,3,4]");
  EXPECT_TRUE(choice.at("logprobs").at("token_logprobs").at(0).is_null());
  EXPECT_EQ(choice.at("logprobs").at("token_logprobs").at(1), -0.5);
  EXPECT_TRUE(choice.at("logprobs").at("top_logprobs").at(0).is_null());
  choice = complete(R"({"prompt":[[97,98],"ab"],"max_tokens":1,"echo":true})").json();
  EXPECT_EQ(choice.at("error").at("param"), "prompt") << "kinds must not be mixed";
  choice = complete(R"({"prompt":[[97,98],[99]],"max_tokens":1,"echo":true})").json().at("choices").at(1);
  EXPECT_EQ(choice.at("text"), "cb");
}

TEST_F(ServerTest, EchoWithoutTokensScoresThePrompt) {
  start();
  const json::value answer = complete(R"({"prompt":"abc","max_tokens":0,"echo":true,"logprobs":1})").json();
  const json::value& choice = answer.at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "abc");
  EXPECT_EQ(choice.at("finish_reason"), "length");
  EXPECT_EQ(choice.at("logprobs").at("tokens").as_array().size(), 3u);
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), 0);
  // A prompt that fills the context can still be scored.
  const std::string full(kContext, 'x');
  EXPECT_EQ(complete(R"({"max_tokens":0,"echo":true,"logprobs":0,"prompt":")" + full + "\"}").status, 200);
  EXPECT_EQ(complete(R"({"max_tokens":0,"echo":true,"logprobs":0,"prompt":"x)" + full + "\"}").status, 400);
}

TEST_F(ServerTest, AStreamedEchoBeginsWithThePrompt) {
  start();
  const auto events = complete(R"({"prompt":"abc","max_tokens":3,"echo":true,"logprobs":1,"stream":true})").events();
  std::string text;
  size_t tokens = 0;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const json::value choice = json::parse(event).at("choices").at(0);
    text += text_of(choice.at("text"));
    tokens += choice.at("logprobs").at("tokens").as_array().size();
  }
  EXPECT_EQ(text, "abcdef");
  EXPECT_EQ(tokens, 6u);
}

TEST_F(ServerTest, PromptLogprobsAreAFieldOfTheirOwn) {
  start();
  const json::value choice =
      complete(R"({"prompt":"abc","max_tokens":1,"prompt_logprobs":1})").json().at("choices").at(0);
  const json::array& positions = choice.at("prompt_logprobs").as_array();
  ASSERT_EQ(positions.size(), 3u);
  EXPECT_TRUE(positions[0].is_null());
  EXPECT_EQ(positions[1].at("98"), (json::value{{"logprob", -0.5}, {"rank", 1}, {"decoded_token", "b"}}));
  const json::value answer = chat(std::string("{") + kHi + R"(,"max_tokens":1,"prompt_logprobs":0})").json();
  EXPECT_EQ(answer.at("prompt_logprobs").as_array().size(), kHiTokens);
}

TEST_F(ServerTest, TokenIdsAreReturnedOnRequest) {
  start();
  const json::value choice =
      complete(R"({"prompt":"ab","max_tokens":2,"return_token_ids":true})").json().at("choices").at(0);
  EXPECT_EQ(json::serialize(choice.at("prompt_token_ids")), "[97,98]");
  EXPECT_EQ(json::serialize(choice.at("token_ids")), "[99,100]");
  const json::value answer = chat(std::string("{") + kHi + R"(,"max_tokens":2,"return_token_ids":true})").json();
  EXPECT_EQ(answer.at("prompt_token_ids").as_array().size(), kHiTokens);
  EXPECT_EQ(answer.at("choices").at(0).at("token_ids").as_array().size(), 2u);
}

TEST_F(ServerTest, WithoutATokenizerThereAreOnlyIds) {
  start({}, {.skip_tokenizer_init = true});
  const auto response = complete(R"({"prompt":[97,98],"max_tokens":2,"return_token_ids":true,"logprobs":1})");
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value choice = response.json().at("choices").at(0);
  EXPECT_EQ(choice.at("text"), "");
  EXPECT_EQ(json::serialize(choice.at("token_ids")), "[99,100]");
  EXPECT_EQ(json::serialize(choice.at("logprobs").at("tokens")), R"(["token_id:99","token_id:100"])");
  EXPECT_EQ(complete(R"({"prompt":"text"})").json().at("error").at("param"), "prompt");
  EXPECT_EQ(complete(R"({"prompt":[1],"stop":"x"})").json().at("error").at("param"), "stop");
  const auto refused = chat(std::string("{") + kHi + "}");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(text_of(refused.json().at("error").at("message")), HasSubstr("tokenizer"));
  EXPECT_EQ(post(port(), "/tokenize", R"({"prompt":"a"})").status, 400);
}

TEST_F(ServerTest, ChatsHaveTheirTemplatesOptions) {
  start();
  const auto count = [&](std::string_view more) {
    const auto response = chat(std::string(R"({"max_tokens":1)") + std::string(more) + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json().at("usage").at("prompt_tokens").to_number<size_t>();
  };
  EXPECT_EQ(count(std::string(",") + kHi), kHiTokens);
  EXPECT_EQ(count(std::string(R"(,"add_generation_prompt":false,)") + kHi), kHiTokens - 1);
  EXPECT_EQ(count(std::string(R"(,"continue_final_message":true,)") + kHi), kHiTokens - 2);
  EXPECT_EQ(count(R"(,"messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}])"),
            kHiTokens + 1)
      << "parts are joined by a newline";
  EXPECT_EQ(count(R"(,"messages":[{"role":"user","content":["h",{"type":"refusal","refusal":"i"}]}])"), kHiTokens + 1)
      << "vLLM takes strings, and an earlier answer may have refused";
}

// What was called before is put into words where the template knows neither tools nor calls, and left to it elsewhere.
TEST_F(ServerTest, EarlierCallsAreTheTemplatesWhereItKnowsThem) {
  start({.trust_request_chat_template = true});
  const auto prompt_tokens = [&](const char* chat_template) {
    const auto response = chat(R"({"max_tokens":1,"chat_template":")" + std::string(chat_template) +
                               R"(","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,
        "tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c","content":"42"}]})");
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json().at("usage").at("prompt_tokens").to_number<size_t>();
  };
  EXPECT_EQ(prompt_tokens("{% for m in messages %}{{ m.role }};{% endfor %}"),
            std::string("user;assistant;user;").size());
  EXPECT_EQ(prompt_tokens("{% for m in messages %}{{ m.role }}{% if m.tool_calls %}!{% endif %};{% endfor %}"),
            std::string("user;assistant!;tool;").size());
}

TEST_F(ServerTest, ATemplateOfTheRequestDoesAllThatTheModelsDoes) {
  start({.trust_request_chat_template = true});
  const auto ask = [&](std::string_view chat_template, std::string_view more) {
    return chat(R"({"max_tokens":1,"chat_template":")" + std::string(chat_template) + "\"," + std::string(more) + "}");
  };
  const auto count = [&](std::string_view more) {
    const auto response = ask("{% for m in messages %}<{{ m.content }}>{% endfor %}", more);
    EXPECT_EQ(response.status, 200) << response.body;
    return response.json().at("usage").at("prompt_tokens").to_number<int>();
  };
  EXPECT_EQ(count(kHi), 4) << "<hi>";
  EXPECT_EQ(count(std::string(R"("continue_final_message":true,)") + kHi), 3) << "<hi";
  EXPECT_EQ(count(R"("messages":[{"role":"user","content":[{"type":"text","text":"h"},{"type":"text","text":"i"}]}])"),
            5)
      << "parts are joined by a newline";
  EXPECT_EQ(ask("{% if tools is none %}none{% endif %}", kHi).json().at("usage").at("prompt_tokens"), 4)
      << "what the reference's templates may ask for is there";
  for (const char* wrong :
       {"{% for %}", "{{ raise_exception('no') }}", "{% for i in range(100000000) %}x{% endfor %}"}) {
    const auto response = ask(wrong, kHi);
    EXPECT_EQ(response.status, 400) << wrong;
    EXPECT_EQ(response.json().at("error").at("param"), "chat_template") << response.body;
  }
}

TEST_F(ServerTest, AFaultOfOneRequestIsItsOwnAndSaysNothingOfTheInside) {
  start();
  const auto whole = complete(R"({"prompt":"a#"})");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.json().at("error").at("type"), "InternalServerError");
  EXPECT_EQ(whole.body.find("0x7ffd"), std::string::npos);
  EXPECT_EQ(whole.body.find("secret"), std::string::npos);
  const auto events = complete(R"({"prompt":"a#","stream":true})").events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(json::parse(events[0]).as_object().contains("error"));
  EXPECT_EQ(events[1], "[DONE]");
  EXPECT_EQ(complete(R"({"prompt":"abc"})").status, 200);
  expect_idle();
}

TEST_F(ServerTest, RequestIdsAreKept) {
  start();
  const auto named =
      post(port(), "/v1/completions", R"({"prompt":"a","request_id":"body"})", "X-Request-Id: my-id.1\r\n");
  EXPECT_EQ(named.headers.at("x-request-id"), "my-id.1");
  EXPECT_EQ(named.json().at("id"), "cmpl-my-id.1");
  EXPECT_EQ(complete(R"({"prompt":"a","request_id":"body"})").json().at("id"), "cmpl-body");
  const auto odd = post(port(), "/v1/completions", R"({"prompt":"a"})", "X-Request-Id: <script>\r\n");
  EXPECT_EQ(odd.headers.at("x-request-id").find('<'), std::string::npos);
}

TEST_F(ServerTest, ModelsAreListed) {
  start();
  const json::value list = get(port(), "/v1/models").json();
  ASSERT_EQ(list.at("data").as_array().size(), 2u);
  EXPECT_EQ(list.at("data").at(0).at("id"), "alphabet");
  EXPECT_EQ(list.at("data").at(0).at("root"), "alphabet.gguf");
  EXPECT_EQ(list.at("data").at(0).at("max_model_len"), kContext);
  EXPECT_EQ(get(port(), "/v1/models/abc").json().at("id"), "abc");
  EXPECT_EQ(get(port(), "/v1/models/%61bc").json().at("id"), "abc");
  const auto unknown = get(port(), "/v1/models/gpt-9");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.json().at("error").at("code"), "model_not_found");
  std::string long_name;
  for (int i = 0; i < 200; ++i) long_name += "é";
  const auto cut = complete(R"({"prompt":"a","model":"x)" + long_name + "\"}");
  EXPECT_THAT(text_of(cut.json().at("error").at("message")), HasSubstr("éé` does not exist"))
      << "cut between characters";
}

TEST_F(ServerTest, HealthVersionAndMetricsAnswer) {
  start();
  EXPECT_EQ(get(port(), "/health").status, 200);
  EXPECT_EQ(get(port(), "/ping").status, 200);
  EXPECT_EQ(post(port(), "/ping", "").status, 200);
  EXPECT_TRUE(get(port(), "/version").json().as_object().contains("version"));
  complete(R"({"prompt":"a","n":2})");
  // A request is counted once its answer is written, which its client may see first.
  auto metrics = get(port(), "/metrics");
  for (int i = 0; i < 200 && metrics.body.find("/v1/completions") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    metrics = get(port(), "/metrics");
  }
  EXPECT_THAT(metrics.headers.at("content-type"), StartsWith("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics.body, HasSubstr("vllm:num_requests_running"));
  EXPECT_THAT(metrics.body, HasSubstr("vllm:request_params_n"));
  EXPECT_THAT(metrics.body, HasSubstr("vllm:http_requests_total"));
  EXPECT_THAT(metrics.body, HasSubstr("/v1/completions"));
}

TEST_F(ServerTest, TextIsTokenizedAndBack) {
  start();
  json::value answer = post(port(), "/tokenize", R"({"prompt":"hé","return_token_strs":true})").json();
  EXPECT_EQ(json::serialize(answer.at("tokens")), "[104,195,169]");
  EXPECT_EQ(answer.at("count"), 3);
  EXPECT_EQ(answer.at("max_model_len"), kContext);
  EXPECT_EQ(answer.at("token_strs").as_array().size(), 3u);
  answer = post(port(), "/tokenize", std::string("{") + kHi + "}").json();
  EXPECT_EQ(answer.at("count"), kHiTokens);
  answer = post(port(), "/detokenize", R"({"tokens":[104,195,169]})").json();
  EXPECT_EQ(answer.at("prompt"), "hé");
  EXPECT_EQ(post(port(), "/detokenize", R"({"tokens":[5000]})").status, 400);
  std::string many = "0";
  for (int i = 0; i < 1 << 20; ++i) many += ",0";
  EXPECT_EQ(post(port(), "/detokenize", R"({"tokens":[)" + many + "]}").json().at("error").at("param"), "tokens");
}

}  // namespace
}  // namespace quire::server
