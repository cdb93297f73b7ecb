// Every field that shapes an answer: what it accepts, and what of it is refused by its name.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai_schema.h"
#include "tests/server/server_fixture.h"

namespace quire::server {
namespace {

namespace json = boost::json;

struct FieldCase {
  const char* name;
  std::vector<std::string> good;  // values, each with what it needs beside it after a comma
  std::vector<std::string> bad;
};

std::string many(const char* item, int count) {
  std::string list = "[";
  for (int i = 0; i < count; ++i) list += (i == 0 ? "" : ",") + std::string(item);
  return list + "]";
}

// Bad for whatever should be a number in a range.
const std::vector<std::string> kNoNumber = {"\"1\"", "true", "[]", "{}", "1e308", "-1e308", "1e999", "\"NaN\""};

std::vector<std::string> with(std::vector<std::string> list, std::initializer_list<const char*> more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

std::vector<FieldCase> field_cases() {
  const std::string deep = std::string(60, '[') + std::string(60, ']');
  return {
      {"temperature", {"0", "1.5", "2", "1e-9", "null"}, with(kNoNumber, {"-0.001", "2.001"})},
      {"top_p", {"1", "0.001"}, with(kNoNumber, {"0", "-1", "1.0001"})},
      {"top_k", {"-1", "0", "3", "1000000", "2.0"}, with(kNoNumber, {"-2", "0.5", "4294967296"})},
      {"min_p", {"0", "1"}, with(kNoNumber, {"-0.1", "1.1"})},
      {"presence_penalty", {"-2", "2"}, with(kNoNumber, {"-2.1", "2.1"})},
      {"frequency_penalty", {"-2", "2"}, with(kNoNumber, {"-2.1", "2.1"})},
      {"repetition_penalty", {"0.5", "3"}, with(kNoNumber, {"0", "-1"})},
      {"typical_p", {"1", "0.5"}, with(kNoNumber, {"0", "1.1", "-0.5"})},
      {"top_n_sigma", {"-1", "0", "1.5"}, kNoNumber},
      {"dynatemp_range", {"0", "0.5"}, with(kNoNumber, {"-0.1"})},
      {"dynatemp_exponent", {"1", "2.5"}, with(kNoNumber, {"0", "-1"})},
      {"xtc_probability", {"0", "1"}, with(kNoNumber, {"-0.1", "1.1"})},
      {"xtc_threshold", {"0", "0.9"}, with(kNoNumber, {"-0.1", "1.1"})},
      {"mirostat", {"0", "1", "2"}, with(kNoNumber, {"3", "-1", "1.5"})},
      {"mirostat_tau", {"5", "0.1"}, with(kNoNumber, {"0", "-1"})},
      {"mirostat_eta", {"0", "1"}, with(kNoNumber, {"-0.1", "1.1"})},
      {"dry_multiplier", {"0", "0.8"}, with(kNoNumber, {"-0.1"})},
      {"dry_base", {"1", "1.75"}, with(kNoNumber, {"0.9", "-1"})},
      {"dry_allowed_length", {"0", "5"}, with(kNoNumber, {"-1", "0.5", "4294967296"})},
      {"dry_penalty_last_n", {"-1", "0", "64"}, with(kNoNumber, {"-2", "0.5"})},
      {"dry_sequence_breakers",
       {"[]", "[\"\\n\"],\"dry_multiplier\":1", "null"},
       {"\"x\"", "[1]", "[\"\"],\"dry_multiplier\":1", "{}", many("\"x\"", 17), many("\"x\"", 100000),
        "[\"" + std::string(20000, 'x') + "\"]", deep}},
      {"n", {"1", "2", "1.0"}, with(kNoNumber, {"0", "-1", "129", "1.5", "2,\"temperature\":0"})},
      {"best_of",
       {"1", "3", "3,\"n\":2", "2,\"n\":2,\"stream\":true"},
       with(kNoNumber, {"0", "129", "1,\"n\":2", "2,\"stream\":true", "2,\"temperature\":0"})},
      {"use_beam_search", {"true", "false", "true,\"n\":3", "true,\"n\":2,\"beam_width\":4"}, {"1", "\"yes\"", "[]"}},
      {"beam_width",
       {"4,\"use_beam_search\":true", "4,\"n\":2,\"use_beam_search\":true"},
       with(kNoNumber, {"4", "0", "129", "1,\"n\":2,\"use_beam_search\":true"})},
      {"length_penalty", {"0,\"use_beam_search\":true", "-2.5,\"use_beam_search\":true", "1"}, with(kNoNumber, {"2"})},
      {"early_stopping",
       {"true,\"use_beam_search\":true", "\"never\",\"use_beam_search\":true", "false"},
       {"true", "\"always\"", "1", "[]", "{}"}},
      {"bad_words",
       {"[]", "[\"zz\",\"b c\"]"},
       {"\"x\"", "[1]", "[\"\"]", "[null]", many("\"x\"", 129), "[\"" + std::string(20000, 'x') + "\"]", deep}},
      {"allowed_token_ids",
       {"[1,2,3]", "null"},
       {"[]", "[-1]", "[257]", "[1.5]", "[\"1\"]", "5", "{}", many("1", 300), "[9999999999999]", deep}},
      {"stop", {"\"zz\"", "[\"y\",\"zz\"]", "[]"}, {"\"\"", "5", "[1]", many("\"x\"", 1025), "{}", deep}},
      {"stop_token_ids", {"[3]", "[]"}, {"[-1]", "[257]", "\"x\"", many("1", 300)}},
      {"logit_bias", {"{\"5\":1e30}", "{}"}, {"[1]", "{\"a\":1}", "{\"257\":1}", "{\"5\":1e400}", "{\"5\":\"x\"}"}},
      {"truncate_prompt_tokens", {"-1", "1", "256"}, with(kNoNumber, {"0", "-2", "257", "1.5", "9223372036854775807"})},
      {"spaces_between_special_tokens", {"true", "false"}, {"1", "\"no\""}},
      {"skip_special_tokens", {"true", "false"}, {"1", "\"no\""}},
      {"include_stop_str_in_output", {"true"}, {"1"}},
      {"ignore_eos", {"true"}, {"1"}},
      {"detokenize", {"true", "false"}, {"0", "\"no\""}},
      {"deterministic", {"true", "false"}, {"1", "\"yes\"", "[]"}},
      {"min_tokens", {"0", "1"}, with(kNoNumber, {"-1", "0.5", "100"})},
      {"seed", {"0", "-5", "9223372036854775807"}, with(kNoNumber, {"0.5", "18446744073709551615"})},
      {"prompt_logprobs", {"0", "20"}, with(kNoNumber, {"-1", "-2", "21", "0.5"})},
      {"repetition_detection",
       {"{\"max_pattern_size\":4,\"min_pattern_size\":1,\"min_count\":3}", "{}", "null"},
       {"true", "[]", "{\"max_pattern_size\":4}", "{\"max_pattern_size\":-1}", "{\"max_pattern_size\":1e308}",
        "{\"max_pattern_size\":2,\"min_pattern_size\":3,\"min_count\":2}",
        "{\"max_pattern_size\":3000,\"min_count\":2}", "{\"max_pattern_size\":4,\"min_count\":\"2\"}"}},
      {"cache_salt", {"\"a\"", "null"}, {"\"\"", "5", "[]", "\"" + std::string(2000, 'x') + "\""}},
      {"priority", {"0", "null"}, with(kNoNumber, {"1", "-1", "0.5", "99999999999"})},
      {"timeout", {"1e30", "60", "null"}, {"0", "-1", "\"5\"", "true", "1e308", "1e999", "[]"}},
  };
}

TEST_F(ServerTest, EveryFieldIsTakenInItsRangeAndRefusedByItsNameOutsideInChatsAndCompletions) {
  start();
  Client client(port());
  const auto ask = [&](const char* path, const std::string& body) {
    client.send(http_request("POST", path, body));
    return client.receive();
  };
  for (const FieldCase& field : field_cases()) {
    for (const auto& [path, begin] :
         {std::pair("/v1/completions", R"({"prompt":"abc","max_tokens":2,")"),
          std::pair("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":2,")")}) {
      for (const std::string& value : field.good) {
        const auto response = ask(path, fmt::format("{}{}\":{}}}", begin, field.name, value));
        EXPECT_EQ(response.status, 200) << path << " " << field.name << ": " << value << "\n" << response.body;
      }
      for (const std::string& value : field.bad) {
        const auto response = ask(path, fmt::format("{}{}\":{}}}", begin, field.name, value));
        ASSERT_EQ(response.status, 400) << path << " " << field.name << ": " << value.substr(0, 80) << "\n"
                                        << response.body;
        const json::value error = response.json().at("error");
        if (error.at("param").is_null()) {  // no number of JSON at all
          EXPECT_THAT(value, testing::HasSubstr("1e")) << response.body;
          continue;
        }
        EXPECT_EQ(text_of(error.at("param")), field.name) << value.substr(0, 80) << "\n" << response.body;
        EXPECT_THAT(text_of(error.at("message")), testing::HasSubstr(field.name));
      }
    }
  }
  expect_idle();
}

json::value choices_of(const ClientResponse& response) {
  EXPECT_EQ(response.status, 200) << response.body;
  return response.json().at("choices");
}

TEST_F(ServerTest, ABeamSearchGivesItsAnswersTheBestFirstWholeAndStreamed) {
  start();
  const std::string body = R"({"prompt":"abc","max_tokens":4,"use_beam_search":true,"n":2,"beam_width":3)";
  const json::value choices = choices_of(complete(body + "}"));
  ASSERT_EQ(choices.as_array().size(), 2u);
  EXPECT_EQ(text_of(choices.at(0).at("text")), letters(3, 4));
  EXPECT_NEAR(choices.at(0).at("cumulative_logprob").as_double(), -2.0, 1e-5);
  EXPECT_NEAR(choices.at(1).at("cumulative_logprob").as_double(), -2.7, 1e-5);
  EXPECT_NE(choices.at(0).at("text"), choices.at(1).at("text"));

  const auto response = complete(body + R"(,"stream":true,"stream_options":{"include_usage":true}})");
  EXPECT_EQ(response.status, 200) << response.body;
  std::vector<std::string> texts(2);
  std::vector<int> parts(2);
  for (const std::string& event : response.events()) {
    if (event == "[DONE]") continue;
    const json::value chunk = json::parse(event);
    if (chunk.at("choices").as_array().empty()) {
      EXPECT_EQ(chunk.at("usage").at("completion_tokens"), 8);
      continue;
    }
    const json::value& choice = chunk.at("choices").at(0);
    const auto index = choice.at("index").to_number<size_t>();
    texts[index] += text_of(choice.at("text"));
    ++parts[index];
    EXPECT_EQ(choice.at("cumulative_logprob"), choices.at(index).at("cumulative_logprob"));
  }
  EXPECT_EQ(texts[0], text_of(choices.at(0).at("text")));
  EXPECT_EQ(texts[1], text_of(choices.at(1).at("text")));
  EXPECT_THAT(parts, testing::ElementsAre(1, 1));
  EXPECT_EQ(complete(body + R"(,"stop":"x"})").json().at("error").at("param"), "stop");
  EXPECT_EQ(complete(body + R"(,"top_p":0.5})").json().at("error").at("param"), "top_p");
  expect_idle();
}

TEST_F(ServerTest, AClientThatLeavesEndsAllOfItsAnswers) {
  start();
  executor_->step_microseconds = 2000;
  for (const char* more : {R"("n":8)", R"("best_of":8)", R"("use_beam_search":true,"n":4,"beam_width":8)",
                           R"("n":8,"stream":true)", R"("use_beam_search":true,"n":4,"stream":true)"}) {
    Client client(port());
    client.send(http_request("POST", "/v1/completions",
                             std::string(R"({"prompt":["abc","abcd"],"max_tokens":200,)") + more + "}"));
    while (engine_->stats().num_running == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    client.close();
    expect_idle();
    EXPECT_LT(engine_->stats().num_steps, 500) << more << ": the work went on to its end";
  }
}

TEST_F(ServerTest, BestOfMakesMoreAnswersThanItReturns) {
  start();
  const auto response = complete(R"({"prompt":["abc","abcd"],"max_tokens":3,"best_of":4,"n":2})");
  const json::value choices = choices_of(response);
  ASSERT_EQ(choices.as_array().size(), 4u);
  EXPECT_EQ(text_of(choices.at(3).at("text")), letters(4, 3));
  EXPECT_EQ(response.json().at("usage").at("completion_tokens"), 12);
  EXPECT_TRUE(choices.at(0).at("logprobs").is_null()) << "those for the ranking are not the client's";
  expect_idle();
}

TEST_F(ServerTest, AReceiptComesWithTheEndOfADeterministicAnswerAndIsTheSameStreamed) {
  start();
  const std::string body = R"({"prompt":"abc","max_tokens":6,"deterministic":true)";
  const json::value choices = choices_of(complete(body + "}"));
  const std::string receipt = text_of(choices.at(0).at("receipt"));
  EXPECT_EQ(receipt.size(), 16u);
  EXPECT_TRUE(choices.at(0).at("logprobs").is_null());
  EXPECT_FALSE(choices_of(complete(R"({"prompt":"abc"})")).at(0).as_object().contains("receipt"));
  EXPECT_NE(
      text_of(choices_of(complete(R"({"prompt":"abcd","max_tokens":6,"deterministic":true})")).at(0).at("receipt")),
      receipt);
  const auto events = complete(body + R"(,"stream":true})").events();
  ASSERT_GE(events.size(), 2u);
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    EXPECT_FALSE(json::parse(events[i]).at("choices").at(0).as_object().contains("receipt"));
  }
  EXPECT_EQ(text_of(json::parse(events[events.size() - 2]).at("choices").at(0).at("receipt")), receipt);
}

TEST_F(ServerTest, ATruncatedPromptKeepsItsEndAndMayBeLongerThanTheContext) {
  start();
  const auto response = complete(R"({"prompt":"abcdefgh","max_tokens":2,"truncate_prompt_tokens":3,"echo":true})");
  EXPECT_EQ(text_of(choices_of(response).at(0).at("text")), "fgh" + letters(3, 2));
  EXPECT_EQ(response.json().at("usage").at("prompt_tokens"), 3);
  const std::string book(kContext * 3, 'x');
  EXPECT_EQ(complete(R"({"prompt":")" + book + R"(","max_tokens":2})").status, 400);
  const auto cut = complete(R"({"prompt":")" + book + R"(","max_tokens":2,"truncate_prompt_tokens":-1})");
  EXPECT_EQ(cut.status, 200) << cut.body;
  EXPECT_EQ(cut.json().at("usage").at("total_tokens"), kContext);
  const auto chat_cut =
      chat(R"({"messages":[{"role":"user","content":")" + book + R"("}],"max_tokens":2,"truncate_prompt_tokens":50})");
  EXPECT_EQ(chat_cut.status, 200) << chat_cut.body;
  EXPECT_EQ(chat_cut.json().at("usage").at("prompt_tokens"), 50);
}

TEST_F(ServerTest, AnAnswerThatGoesRoundInCirclesEndsByRepetition) {
  start();
  const json::value choices = choices_of(complete(
      R"({"prompt":"abc","max_tokens":200,"repetition_detection":{"max_pattern_size":26,"min_pattern_size":26,"min_count":2}})"));
  EXPECT_EQ(choices.at(0).at("finish_reason"), "repetition");
  EXPECT_EQ(text_of(choices.at(0).at("text")), letters(3, 52));
}

TEST_F(ServerTest, EveryChoiceShowsItsPromptsLogprobs) {
  start();
  const json::value whole = choices_of(
      complete(R"({"prompt":["ab","abcd"],"max_tokens":2,"n":3,"prompt_logprobs":1,"logprobs":1,"echo":true})"));
  ASSERT_EQ(whole.as_array().size(), 6u);
  for (size_t i = 0; i < 6; ++i) {
    const size_t prompt_tokens = i < 3 ? 2 : 4;
    EXPECT_EQ(whole.at(i).at("prompt_logprobs").as_array().size(), prompt_tokens) << i;
    EXPECT_EQ(whole.at(i).at("logprobs").at("token_logprobs").as_array().size(), prompt_tokens + 2) << i;
    EXPECT_TRUE(whole.at(i).at("logprobs").at("token_logprobs").at(1).is_double()) << i;
  }
  std::vector<size_t> counts(6);
  for (const std::string& event :
       complete(R"({"prompt":["ab","abcd"],"max_tokens":9,"n":3,"logprobs":1,"echo":true,"stream":true})").events()) {
    if (event == "[DONE]") continue;
    const json::value choice = json::parse(event).at("choices").at(0);
    for (const json::value& value : choice.at("logprobs").at("token_logprobs").as_array()) {
      counts[choice.at("index").to_number<size_t>()] += value.is_null() ? 100 : 1;
    }
  }
  EXPECT_THAT(counts, testing::ElementsAre(110, 110, 110, 112, 112, 112)) << "null for the first token alone";
}

TEST_F(ServerTest, LogprobsOfTheWholeVocabularyComeWhereTheServerAllowsThem) {
  start({}, {.max_logprobs = -1});
  const json::value choices = choices_of(complete(R"({"prompt":"abc","max_tokens":1,"logprobs":-1})"));
  EXPECT_EQ(choices.at(0).at("logprobs").at("tokens").as_array().size(), 1u);
  const auto chat_answer =
      chat(R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"logprobs":true,"top_logprobs":-1})");
  EXPECT_EQ(chat_answer.status, 200) << chat_answer.body;
}

TEST(SamplingFields, ASeedOfMinusOneIsNone) {
  for (const auto& [text, seed] : {std::pair<const char*, std::optional<uint64_t>>{R"({"prompt":"a"})", std::nullopt},
                                   {R"({"prompt":"a","seed":-1})", std::nullopt},
                                   {R"({"prompt":"a","seed":-2})", static_cast<uint64_t>(-2)},
                                   {R"({"prompt":"a","seed":0})", 0}}) {
    const auto request = parse_completion_request(json::parse(text).as_object(), {});
    ASSERT_TRUE(request.ok()) << request.status().message();
    EXPECT_EQ(request->options.params.seed, seed) << text;
  }
}

}  // namespace
}  // namespace quire::server
