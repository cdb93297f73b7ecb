// The end of an LLM while requests are under way.
#include <atomic>
#include <fstream>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "quire/llm.h"
#include "tests/engine/fake_executor.h"

namespace quire {
namespace {

using engine::FakeExecutor;

std::string file_contents(const std::string& name) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/tokenizers/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  std::stringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

std::unique_ptr<LLM> make_llm(EngineConfig config, std::unique_ptr<FakeExecutor> executor,
                              Drive drive = Drive::kOwnThread) {
  auto engine = engine::Engine::create(std::move(config), std::move(executor), nullptr, drive);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::make_unique<LLM>(std::move(*engine)) : nullptr;
}

// ---- the end ----

// Kinds whose text of a token depends on the tokens before it: the tokenizer is asked at every token, and at the end.
class LlmEnd : public testing::TestWithParam<std::string> {
 protected:
  static TextSource source() {
    TextSource text;
    if (GetParam().ends_with(".json")) {
      text.tokenizer_json = file_contents(GetParam());
    } else {
      text.sentencepiece_model = file_contents(GetParam());
    }
    return text;
  }
};

TEST_P(LlmEnd, HandsOutTheEndsOfAllRequestsUnderWayBeforeItsTokenizerGoes) {
  const TextSource text = source();
  for (int cycle = 0; cycle < 50; ++cycle) {
    auto executor = std::make_unique<FakeExecutor>();
    executor->text_source() = text;
    auto llm = make_llm({.async_scheduling = cycle % 2 == 1}, std::move(executor));
    ASSERT_NE(llm, nullptr);
    std::atomic<int> begun{0};
    std::atomic<int> ended{0};
    std::vector<std::unique_ptr<Generation>> running;
    for (TokenId i = 0; i < 4; ++i) {
      auto generation = llm->generate_async(std::vector<TokenId>{20 + i, 30 + cycle}, {.max_tokens = 400},
                                            [&](const RequestUpdate& update) {
                                              ++begun;
                                              if (update.finish_reason != FinishReason::kNone) ++ended;
                                            });
      ASSERT_TRUE(generation.ok()) << generation.status().message();
      running.push_back(std::move(*generation));
    }
    // Some die before their first token, some in the middle; one was cancelled, one dropped.
    while (cycle % 3 != 0 && begun < 4) std::this_thread::yield();
    running[0]->cancel();
    running[1].reset();
    llm.reset();
    EXPECT_GE(ended, 2) << "those that nobody cancelled";
    for (size_t i = 2; i < running.size(); ++i) running[i]->wait();
  }
}

TEST_P(LlmEnd, MayComeWithRequestsOfTheCallersLoopUnfinished) {
  auto executor = std::make_unique<FakeExecutor>();
  executor->text_source() = source();
  auto llm = make_llm({}, std::move(executor), Drive::kCaller);
  ASSERT_TRUE(llm->add_request("a", "some text", {.max_tokens = 100}).ok());
  ASSERT_TRUE(llm->step().ok());
  llm.reset();
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, LlmEnd,
                         testing::Values("llama2_style_spm_bpe.json", "unigram_nfkc.json",
                                         "sentencepiece/unigram_bytes.model", "sentencepiece/bpe_bytes.model"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

}  // namespace
}  // namespace quire
