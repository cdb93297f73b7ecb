// Bodies that are made while they are taken, the room that keys share, and JSON that is written as text.
#include "server/body_source.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/answer_size.h"
#include "server/http_server.h"
#include "server/json_text.h"
#include "server/openai_writer.h"
#include "server/shared_bytes.h"
#include "tests/server/http_client.h"

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

// ------------------------------------------------------------------------------------------------------------- room

std::shared_ptr<SharedBytes> room(size_t most, const std::vector<double>& weights) {
  return std::make_shared<SharedBytes>(most, weights, std::chrono::milliseconds(0));
}

TEST(SharedBytes, OneTenantMayHaveAllAndGivesItBack) {
  const auto pool = room(100, {});
  {
    HeldBytes one = pool->place(0);
    EXPECT_TRUE(one.set(60));
    EXPECT_TRUE(one.set(100));
    HeldBytes other = pool->place(0);
    EXPECT_FALSE(other.set(1));
    EXPECT_TRUE(one.set(99));
    EXPECT_TRUE(other.set(1));
    const HeldBytes moved = std::move(one);
    EXPECT_EQ(pool->total(), 100u);
  }
  EXPECT_EQ(pool->total(), 0u);
}

TEST(SharedBytes, ATenantMayHoldAsMuchAsIsLeftForOthers) {
  const auto pool = room(120, {1, 1, 0.5});
  std::vector<HeldBytes> held;
  const auto flood = [&](int32_t tenant) {
    size_t bytes = 0;
    for (HeldBytes one = pool->place(tenant); one.set(1); one = pool->place(tenant)) {
      held.push_back(std::move(one));
      ++bytes;
    }
    return bytes;
  };
  EXPECT_EQ(flood(0), 60u);
  EXPECT_EQ(flood(1), 30u);
  EXPECT_EQ(flood(2), 10u) << "it has half the weight";
  EXPECT_EQ(flood(-1), 1u) << "who has no key has next to nothing";
}

TEST(SharedBytes, TheFirstOfATenantMayBeLargerThanItsShare) {
  const auto pool = room(100, {1, 1});
  HeldBytes large = pool->place(0);
  EXPECT_TRUE(large.set(90));
  HeldBytes more = pool->place(0);
  EXPECT_FALSE(more.set(1));
  HeldBytes other = pool->place(1);
  EXPECT_TRUE(other.set(10));
}

TEST(SharedBytes, TheSlowestOfTheTenantThatHoldsTheMostMakesRoom) {
  const auto pool = room(100, {1, 1});
  std::vector<std::string> cut;
  HeldBytes slow = pool->place(0, [&] { cut.emplace_back("slow"); });
  HeldBytes fast = pool->place(0, [&] { cut.emplace_back("fast"); });
  HeldBytes safe = pool->place(0, [&] { cut.emplace_back("safe"); });
  HeldBytes others = pool->place(1, [&] { cut.emplace_back("others"); });
  EXPECT_TRUE(slow.set(20) && fast.set(20) && safe.set(20) && others.set(10));
  safe.cannot_be_cut();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  slow.progress(1);
  for (int i = 0; i < 3; ++i) fast.progress(1 << 20);
  EXPECT_FALSE(fast.set(200)) << "more than there is drives nobody out";
  EXPECT_THAT(cut, testing::ElementsAre());
  HeldBytes comes = pool->place(1);
  EXPECT_TRUE(comes.set(31));
  EXPECT_THAT(cut, testing::ElementsAre("slow"));
  EXPECT_FALSE(slow.set(1)) << "it was told to go";
  EXPECT_EQ(pool->held_by(0), 40u);
  // There are 19 left for a tenant that has 41: what is over its share is for its own to pay.
  HeldBytes more = pool->place(1);
  EXPECT_FALSE(more.set(15));
  EXPECT_THAT(cut, testing::ElementsAre("slow")) << "nobody goes where that would not be enough";
  EXPECT_EQ(pool->total(), 81u);
  EXPECT_TRUE(comes.set(20));
  EXPECT_TRUE(more.set(5));
  EXPECT_THAT(cut, testing::ElementsAre("slow", "others"));
}

// ----------------------------------------------------------------------------------------------------------- bodies

TEST(TextBody, TextsComeInTheirOrderAndTheSameOneIsHeldOnce) {
  const auto shared = std::make_shared<const std::string>(100000, 's');
  TextBody body;
  body.add("a");
  body.add(std::string("b"));
  for (int i = 0; i < 10; ++i) {
    body.add(shared);
    body.add(",");
  }
  const std::string whole = body.text();
  EXPECT_EQ(body.size(), whole.size());
  EXPECT_EQ(whole.size(), 2 + 10 * 100001u);
  EXPECT_LT(body.held(), 200000u);
  std::string taken;
  for (auto piece = body.next(); !piece->empty(); piece = body.next()) taken += *piece;
  EXPECT_EQ(taken, whole);
}

// "/file" is answered with a file.
class FileHandler final : public HttpHandler {
 public:
  std::optional<HttpResponse> screen(HttpRequest&) override { return std::nullopt; }
  void handle(std::shared_ptr<Exchange> exchange) override {
    auto file = FileBody::open(path);
    if (file.ok()) exchange->respond({200, "text/plain", {}, "", std::move(*file)});
  }
  void answered(const HttpRequest&, int, double) override {}
  std::string path;
};

TEST(FileBody, AFileIsSentAPieceAtATimeToAnyNumberOfReaders) {
  FileHandler handler;
  handler.path = testing::TempDir() + "quire-file-body";
  std::string content;
  for (int i = 0; content.size() < (5 << 20); ++i) content += std::to_string(i) + "\n";
  std::ofstream(handler.path, std::ios::binary) << content;
  // Room for a few pieces, not for the file.
  auto server = HttpServer::start({.host = "127.0.0.1", .port = 0, .max_unsent_bytes = 1 << 20}, handler);
  ASSERT_TRUE(server.ok()) << server.status().message();
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 10; ++i) {
    idle.push_back(std::make_unique<Client>((*server)->port(), 4096));
    idle.back()->send(http_request("GET", "/file"));
  }
  Client client((*server)->port());
  for (int i = 0; i < 2; ++i) {
    client.send(http_request("GET", "/file"));
    const auto response = client.receive();
    EXPECT_EQ(response.status, 200);
    EXPECT_TRUE(response.body == content) << response.body.size();
  }
  client.send(http_request("HEAD", "/file"));
  EXPECT_EQ(client.receive(/*head_only=*/true).headers.at("content-length"), std::to_string(content.size()));
  std::filesystem::remove(handler.path);
  EXPECT_FALSE(FileBody::open(handler.path).ok());
  client.send(http_request("GET", "/file"));
  EXPECT_EQ(client.receive().status, 500);
}

// ---------------------------------------------------------------------------------------------------------- answers

PositionLogprobs position_of(TokenId id, int count) {
  PositionLogprobs out{{id, -0.1234567f, 1}, {}};
  for (int i = 0; i < count; ++i) out.top.push_back({id + i, -0.1234567f - static_cast<float>(i), i + 1});
  return out;
}

TEST(CompletionWriterTest, APromptsPartIsHeldOnceForAllOfItsChoices) {
  constexpr size_t kChoices = 16;
  std::vector<PreparedPrompt> prompts(2);
  for (PreparedPrompt& prompt : prompts) prompt.ids.assign(500, 7);
  prompts[1].ids.assign(3, 8);
  Answer answer(prompts, 2 * kChoices);
  for (PromptState& state : answer.prompts) {
    for (size_t i = 1; i < state.prompt.ids.size(); ++i) {
      state.logprobs.push_back(position_of(static_cast<TokenId>(100 * i), 20));
    }
  }
  AnswerContext context;
  context.id = "cmpl-1";
  context.num_logprobs = 2;
  context.prompt_logprobs_asked = true;
  context.echo = true;
  context.return_token_ids = true;
  std::vector<engine::OutputDelta> deltas(2 * kChoices);
  for (size_t i = 0; i < deltas.size(); ++i) {
    deltas[i].text = "text \"" + std::to_string(i) + "\"\n";
    deltas[i].tokens = {1, 2};
    deltas[i].logprobs = {position_of(1, 2), position_of(2, 2)};
    deltas[i].finish = FinishReason::kLength;
  }
  CompletionWriter writer(context, deltas.size());
  const HttpResponse response = writer.whole(answer, deltas);
  ASSERT_NE(response.source, nullptr);
  EXPECT_LT(response.source->held(), response.source->size() / 4);
  std::string body;
  for (auto piece = response.source->next(); !piece->empty(); piece = response.source->next()) body += *piece;
  EXPECT_EQ(body.size(), response.source->size());

  const json::value value = json::parse(body);
  const json::array& choices = value.at("choices").as_array();
  ASSERT_EQ(choices.size(), 2 * kChoices);
  for (size_t i = 0; i < choices.size(); ++i) {
    SCOPED_TRACE(i);
    const size_t length = answer.choices[i].prompt->prompt.ids.size();
    EXPECT_EQ(choices[i].at("index"), i);
    EXPECT_EQ(choices[i].at("text"), json::string(deltas[i].text));
    EXPECT_EQ(choices[i].at("token_ids"), json::array({1, 2}));
    EXPECT_EQ(choices[i].at("prompt_token_ids").as_array().size(), length);
    EXPECT_EQ(choices[i].at("prompt_logprobs").as_array().size(), length);
    const json::value& logprobs = choices[i].at("logprobs");
    for (const char* list : {"text_offset", "token_logprobs", "tokens", "top_logprobs"}) {
      EXPECT_EQ(logprobs.at(list).as_array().size(), length + 2) << list;
    }
    EXPECT_TRUE(logprobs.at("token_logprobs").at(0).is_null());
    EXPECT_DOUBLE_EQ(logprobs.at("token_logprobs").at(1).as_double(), double{-0.1234567f});
    EXPECT_EQ(logprobs.at("tokens").at(length), "token_id:1");
  }
}

TEST(AnswerSizeTest, APromptsPartIsHeldOnceAndSentWithEachChoice) {
  SamplingParams params;
  params.n = 128;
  params.max_tokens = 16;
  params.prompt_logprobs = 20;
  AnswerContext context;
  context.prompt_logprobs_asked = true;
  std::vector<PreparedPrompt> prompts(1);
  prompts.front().ids.assign(8191, 1);
  const engine::CostFacts facts{.vocab_size = 50000, .max_model_len = 8208};
  const AnswerSize size = answer_size(params, context, prompts, facts);
  EXPECT_GT(size.text, int64_t{2} << 30);
  EXPECT_LT(size.held, int64_t{64} << 20);
  EXPECT_GE(size.held, 8191 * 21 * 100);
  params.prompt_logprobs = std::numeric_limits<int32_t>::max();
  EXPECT_LE(answer_size(params, context, prompts, facts).held, int64_t{8191} * 50001 * 200);
  context.prompt_logprobs_asked = false;
  params.prompt_logprobs.reset();
  EXPECT_EQ(answer_size(params, context, prompts, facts).text, 0) << "words are not counted";
}

TEST(JsonText, WhatIsWrittenIsReadBackTheSame) {
  std::string all;
  for (int byte = 0; byte < 128; ++byte) all += static_cast<char>(byte);
  for (const std::string& text : {std::string(), all, std::string("é\\\"\n☃𝄞"), std::string("\0a", 2)}) {
    std::string out;
    append_json(out, text);
    EXPECT_EQ(json::parse(out).as_string(), text);
  }
  for (const double number : {0.0, -0.5, 1.0, -9999.0, 1e300, 5e-324, double{-0.1f}, 123456789.0}) {
    std::string out;
    append_json(out, number);
    ASSERT_TRUE(json::parse(out).is_double()) << out;
    EXPECT_EQ(std::strtod(out.c_str(), nullptr), number);  // Boost's parser may be off by a bit
  }
  std::string list = "[";
  append_json_list(list, std::vector<int64_t>{-1, 0, std::numeric_limits<int64_t>::max()},
                   [&](int64_t number) { append_json(list, number); });
  EXPECT_EQ(list + "]", "[-1,0,9223372036854775807]");
}

}  // namespace
}  // namespace quire::server
