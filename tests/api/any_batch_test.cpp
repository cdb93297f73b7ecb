// An answer is the same bits whatever it runs beside and however the engine goes about it: each variant of the batch,
// chunking, preemption, caching and planning ahead gives the receipts that the requests get one at a time.
#include <functional>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/output.h"
#include "quire/llm.h"
#include "tests/runner/tiny_model.h"

namespace quire {
namespace {

using runner::tiny_path;

struct Variant {
  const char* name;
  std::function<void(EngineConfig&)> set;
  bool preempts = false;  // must have happened, or the test shows nothing
  bool swaps = false;
};

constexpr int64_t kBlocks = 1024;

// Room for the largest request alone, so that the others are in each other's way.
void tight(EngineConfig& c) {
  c.block_size = 4;
  c.num_gpu_blocks_override = 19;
  c.watermark = 0;
}

const Variant kVariants[] = {
    {"together", [](EngineConfig&) {}},
    {"chunks_of_7", [](EngineConfig& c) { c.max_num_batched_tokens = 7; }},
    {"long_prefill_threshold",
     [](EngineConfig& c) {
       c.long_prefill_token_threshold = 5;
       c.max_num_partial_prefills = 3;
     }},
    {"without_prefix_cache", [](EngineConfig& c) { c.enable_prefix_caching = false; }},
    {"blocks_of_1", [](EngineConfig& c) { c.block_size = 1; }},
    {"blocks_of_3", [](EngineConfig& c) { c.block_size = 3; }},
    {"recompute",
     [](EngineConfig& c) {
       tight(c);
       c.preemption_mode = PreemptionMode::kRecompute;
     },
     true},
    {"recompute_without_prefix_cache",
     [](EngineConfig& c) {
       tight(c);
       c.preemption_mode = PreemptionMode::kRecompute;
       c.enable_prefix_caching = false;
     },
     true},
    {"swap",
     [](EngineConfig& c) {
       tight(c);
       c.preemption_mode = PreemptionMode::kSwap;
       c.swap_space = 0.01;
     },
     true, true},
    {"swap_to_a_file",
     [](EngineConfig& c) {
       tight(c);
       c.preemption_mode = PreemptionMode::kSwap;
       c.swap_space = 0.01;
       c.swap_file = testing::TempDir();
     },
     true, true},
    {"four_steps_ahead", [](EngineConfig& c) { c.num_scheduler_steps = 4; }},
    {"async", [](EngineConfig& c) { c.async_scheduling = true; }},
    {"async_and_preempted",
     [](EngineConfig& c) {
       c.async_scheduling = true;
       tight(c);
     },
     true},
};

class AnyBatchTest : public testing::TestWithParam<std::string> {
 protected:
  static EngineConfig config() {
    return {.model = tiny_path(GetParam()), .skip_tokenizer_init = true, .num_gpu_blocks_override = kBlocks};
  }

  // Prompts that share beginnings, some whole; greedy and drawn, with and without logits processing.
  static std::vector<std::pair<std::vector<TokenId>, SamplingParams>> requests() {
    std::vector<std::pair<std::vector<TokenId>, SamplingParams>> list;
    for (int i = 0; i < 12; ++i) {
      std::vector<TokenId> prompt;
      for (int j = 0; j < 20 + 5 * (i % 4); ++j) prompt.push_back(10 + (j * 7) % 400);
      if (i % 3 == 1) prompt.push_back(30 + i);
      SamplingParams params{.temperature = i % 2 == 0 ? 0.0f : 0.9f,
                            .top_p = i % 4 == 1 ? 0.9f : 1.0f,
                            .repetition_penalty = i % 4 == 3 ? 1.2f : 1.0f,
                            .seed = 100 + static_cast<uint64_t>(i),
                            .max_tokens = 24 + i,
                            .ignore_eos = true,
                            .deterministic = true};
      list.emplace_back(std::move(prompt), std::move(params));
    }
    return list;
  }

  // The attention sums over blocks, so their size is part of what the bits depend on; the rest of the batch is not.
  static std::vector<std::string> receipts_alone(int32_t block_size) {
    EngineConfig plain = config();
    plain.block_size = block_size;
    plain.enable_prefix_caching = false;
    auto llm = LLM::create(plain);
    EXPECT_TRUE(llm.ok()) << llm.status().message();
    std::vector<std::string> receipts;
    for (const auto& [prompt, params] : requests()) {
      auto outputs = (*llm)->generate({prompt}, params, {.progress = false});
      EXPECT_TRUE(outputs.ok()) << outputs.status().message();
      receipts.push_back(outputs->front().receipt);
    }
    return receipts;
  }
};

TEST_P(AnyBatchTest, ReceiptsAreTheSameInEveryVariantOfTheEngine) {
  std::map<int32_t, std::vector<std::string>> known;
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    EngineConfig changed = config();
    variant.set(changed);
    // Its states make blocks 16 tokens long, and take one for each of three groups of layers.
    if (GetParam() == "qwen3_5" && changed.num_gpu_blocks_override < kBlocks) {
      changed.num_gpu_blocks_override = 14;
      changed.max_num_batched_tokens = 16;
    }
    std::vector<std::string>& alone = known[changed.block_size];
    if (alone.empty()) alone = receipts_alone(changed.block_size);
    ASSERT_THAT(alone, testing::Each(testing::SizeIs(16)));
    auto llm = LLM::create(changed);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    engine::Engine& engine = (*llm)->engine();
    // Twice: the second time the prefix cache is warm.
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<engine::Completion>> running;
      for (const auto& [prompt, params] : requests()) {
        auto started = engine::Completion::start_one(engine, {.prompt = prompt, .params = params});
        ASSERT_TRUE(started.ok()) << started.status().message();
        running.push_back(std::move(*started));
      }
      for (size_t i = 0; i < running.size(); ++i) {
        engine::OutputDelta whole;
        while (!running[i]->finished()) engine::append(whole, running[i]->take());
        EXPECT_EQ(whole.receipt, alone[i]) << "request " << i << ", round " << round;
      }
    }
    const engine::EngineStats stats = engine.stats();
    // A window gives blocks back, so that requests may never be in each other's way.
    const bool windowed = GetParam() != "llama";
    if (variant.preempts && !windowed) {
      EXPECT_GT(stats.num_preemptions, 0);
    }
    if (variant.swaps && !windowed) {
      EXPECT_GT(stats.num_swaps, 0);
    }
    if (changed.enable_prefix_caching) {
      EXPECT_GT(stats.prefix_hit_tokens, 0);
    }
  }
}

TEST_P(AnyBatchTest, EachOfSeveralSamplesIsWhatItsSeedGivesAlone) {
  auto llm = LLM::create(config());
  ASSERT_TRUE(llm.ok());
  const std::vector<TokenId> prompt = requests().front().first;
  SamplingParams params{
      .n = 5, .temperature = 1.0f, .seed = 7, .max_tokens = 20, .ignore_eos = true, .deterministic = true};
  auto together = (*llm)->generate({prompt}, params, {.progress = false});
  ASSERT_TRUE(together.ok()) << together.status().message();
  ASSERT_EQ(together->front().outputs.size(), 5u);
  params.n = 1;
  for (uint64_t i = 0; i < 5; ++i) {
    params.seed = 7 + i;
    auto alone = (*llm)->generate({prompt}, params, {.progress = false});
    EXPECT_EQ(together->front().outputs[i].receipt, alone->front().receipt) << "sample " << i;
  }
}

TEST_P(AnyBatchTest, TheBestOfManyAreThoseOfTheHighestMeanLogprob) {
  auto llm = LLM::create(config());
  ASSERT_TRUE(llm.ok());
  const std::vector<TokenId> prompt = requests().front().first;
  SamplingParams params{.n = 6, .temperature = 1.0f, .seed = 3, .max_tokens = 12, .ignore_eos = true, .logprobs = 0};
  auto all = (*llm)->generate({prompt}, params, {.progress = false});
  ASSERT_TRUE(all.ok());
  std::vector<std::pair<double, std::vector<TokenId>>> ranked;
  for (const CompletionOutput& output : all->front().outputs) {
    double sum = 0;
    for (const PositionLogprobs& position : output.logprobs) sum += static_cast<double>(position.chosen.logprob);
    ranked.emplace_back(-sum / static_cast<double>(output.logprobs.size()), output.token_ids);
  }
  std::ranges::stable_sort(ranked, {}, &std::pair<double, std::vector<TokenId>>::first);
  params.n = 2;
  params.best_of = 6;
  auto best = (*llm)->generate({prompt}, params, {.progress = false});
  ASSERT_TRUE(best.ok()) << best.status().message();
  ASSERT_EQ(best->front().outputs.size(), 2u);
  EXPECT_EQ(best->front().outputs[0].token_ids, ranked[0].second);
  EXPECT_EQ(best->front().outputs[1].token_ids, ranked[1].second);
}

// Recurrent layers: answers that outgrow the pool together, so that states are swapped, or computed again.
TEST(AnyBatch, StatesComeBackAsTheyWere) {
  const EngineConfig roomy{.model = tiny_path("qwen3_5"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 512};
  const SamplingParams params{
      .temperature = 1.0f, .seed = 5, .max_tokens = 100, .ignore_eos = true, .deterministic = true};
  std::vector<Prompt> prompts;
  for (int i = 0; i < 8; ++i) prompts.emplace_back(std::vector<TokenId>{10 + i, 20, 30, 40 + i, 50});
  std::vector<std::string> alone;
  auto llm = LLM::create(roomy);
  ASSERT_TRUE(llm.ok()) << llm.status().message();
  for (const auto& prompt : prompts) {
    auto outputs = (*llm)->generate({prompt}, params, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    alone.push_back(outputs->front().receipt);
  }
  for (const PreemptionMode mode : {PreemptionMode::kRecompute, PreemptionMode::kSwap}) {
    EngineConfig tight = roomy;
    tight.num_gpu_blocks_override = 20;
    tight.max_num_batched_tokens = 16;
    tight.watermark = 0;
    tight.preemption_mode = mode;
    tight.swap_space = mode == PreemptionMode::kSwap ? 0.01 : 0;
    auto crowded = LLM::create(tight);
    ASSERT_TRUE(crowded.ok()) << crowded.status().message();
    // How far they run together depends on when the engine sees each.
    for (int round = 0; round < 50 && (*crowded)->engine().stats().num_preemptions == 0; ++round) {
      auto outputs = (*crowded)->generate(prompts, params, {.progress = false});
      ASSERT_TRUE(outputs.ok()) << outputs.status().message();
      for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ((*outputs)[i].receipt, alone[i]) << i;
    }
    EXPECT_GT((*crowded)->engine().stats().num_preemptions, 0);
    if (mode == PreemptionMode::kSwap) {
      EXPECT_GT((*crowded)->engine().stats().num_swaps, 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, AnyBatchTest, testing::Values("llama", "mistral_swa", "qwen3_5"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire
