// Ranks that each have a part of every weight, against one that has all of it.
#include <gmock/gmock.h>

#include <thread>

#include "comm/shared_communicator.h"
#include "comm/shared_segment.h"
#include "nn/expert_linear.h"
#include "nn/loader.h"
#include "nn/shard.h"
#include "tests/runner/near_logits.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr int32_t kWholePrompt = 2048;

std::unique_ptr<ops::Backend> one_thread() {
  return std::move(
      ops::make_cpu_backend({.threads = 1, .isa = Isa::kAvx2, .activation_dtype = ActivationDType::kFloat32}).value());
}

// Logits after each token of the prompts, as rank 0 of so many has them.
std::vector<Rows> logits_of_ranks(const std::string& name, int num_ranks, const std::string& quantization = "",
                                  int32_t chunk = kWholePrompt, bool whole_experts = false) {
  const comm::SharedGroupShape shape{.num_ranks = num_ranks, .slot_bytes = 16 << 10};
  auto segment = comm::SharedSegment::create(comm::shared_group_bytes(shape)).value();
  const std::vector<GoldenCase> cases = read_golden(name);
  std::vector<Rows> all(cases.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      auto communicator = comm::join_shared_group(segment.data(), shape, {.rank = rank}).value();
      const auto backend = one_thread();
      TinyModel model(name, *backend, "float32", {}, quantization, LoadFormat::kAuto, WeightDType::kAuto, nullptr,
                      communicator.get(), whole_experts);
      if (testing::Test::HasFailure()) return;
      model.fill_memory(0xff);
      for (size_t i = 0; i < cases.size(); ++i) {
        Rows rows = model.logits(cases[i].prompt, chunk);
        if (rank == 0) all[i] = std::move(rows);
      }
      EXPECT_TRUE(communicator->status().ok()) << communicator->status().message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

std::vector<Rows> logits_of_one(const std::string& name, const std::string& quantization = "") {
  const auto backend = one_thread();
  TinyModel model(name, *backend, "float32", {}, quantization);
  std::vector<Rows> all;
  for (const GoldenCase& one : read_golden(name)) all.push_back(model.logits(one.prompt, kWholePrompt));
  return all;
}

class TensorParallel : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(TensorParallel, LogprobsAreThoseOfOneProcess) {
  const auto& [name, num_ranks] = GetParam();
  expect_near_logprobs(name, logits_of_ranks(name, num_ranks), logits_of_one(name), 1e-4);
}

TEST_P(TensorParallel, EveryRunHasTheSameBitsHoweverThePromptIsCut) {
  const auto& [name, num_ranks] = GetParam();
  const std::vector<Rows> first = logits_of_ranks(name, num_ranks);
  EXPECT_EQ(logits_of_ranks(name, num_ranks), first);
  EXPECT_EQ(logits_of_ranks(name, num_ranks, "", /*chunk=*/7), first);
}

const std::string kFamilies[] = {"llama",
                                 "llama3_rope",
                                 "llama_linear",
                                 "llama_yarn",
                                 "mistral_swa",
                                 "qwen2",
                                 "qwen3",
                                 "olmo2",
                                 "granite",
                                 "phi3",
                                 "glm4",
                                 "gemma2",
                                 "gemma3",
                                 "gemma4",
                                 "gemma4_dense",
                                 "gemma4_moe",
                                 "gpt2",
                                 "opt",
                                 "mixtral",
                                 "qwen2_moe",
                                 "qwen3_moe",
                                 "qwen3_next",
                                 "qwen3_5",
                                 "qwen3_5_moe",
                                 "olmo_hybrid",
                                 "granitemoehybrid",
                                 "bamba",
                                 "falcon_h1",
                                 "nemotron_h",
                                 "nemotron_h_narrow",
                                 "lfm2",
                                 "lfm2_moe",
                                 "deepseek_v2",
                                 "deepseek_v3",
                                 "gpt_oss",
                                 "llama_fp8_rows",
                                 "qwen3_fp8_blocks",
                                 "deepseek_v3_fp8_blocks",
                                 "qwen3_windows",
                                 "glm_untied_bias",
                                 "gemma2_capless",
                                 "gemma3_wrapped",
                                 "gpt2_inverse",
                                 "opt_projected",
                                 "phi3_longrope",
                                 "qwen2_moe_windows",
                                 "deepseek_v3_yarn",
                                 "gpt_oss_limits",
                                 "llama_yarn_mscale",
                                 "gemma",
                                 "olmo3",
                                 "olmoe",
                                 "smollm3",
                                 "seed_oss",
                                 "ernie4_5",
                                 "exaone4",
                                 "ministral",
                                 "glm4_moe",
                                 "dots1",
                                 "granitemoe",
                                 "ernie4_5_moe",
                                 "glm4_moe_lite",
                                 "minimax_m2",
                                 "starcoder2",
                                 "stablelm",
                                 "stablelm_parallel",
                                 "phi",
                                 "cohere",
                                 "cohere_plus",
                                 "exaone_moe",
                                 "ministral3",
                                 "mistral4",
                                 "afmoe",
                                 "apertus",
                                 "stablelm_12b",
                                 "hunyuan_v1_dense",
                                 "hunyuan_v1_moe",
                                 "llama4",
                                 "arcee",
                                 "nemotron",
                                 "olmo",
                                 "gpt_neox",
                                 "gpt_neox_serial",
                                 "falcon",
                                 "falcon_new",
                                 "gpt_bigcode",
                                 "cohere2"};

std::string test_name(const testing::TestParamInfo<std::tuple<std::string, int>>& test) {
  return std::get<0>(test.param) + "_" + std::to_string(std::get<1>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Two, TensorParallel, testing::Combine(testing::ValuesIn(kFamilies), testing::Values(2)),
                         test_name);
// More ranks than kv heads, and parts of unlike sizes.
INSTANTIATE_TEST_SUITE_P(More, TensorParallel,
                         testing::Combine(testing::Values("llama", "olmo2", "gpt_oss", "gpt2", "deepseek_v2", "gemma3",
                                                          "qwen2_moe"),
                                          testing::Values(3, 4)),
                         test_name);
// Ranks that meet within the heads that read one kv head: with norms of each head and of all, and where a projection
// has each group's rows beside each other.
INSTANTIATE_TEST_SUITE_P(Thirds, TensorParallel,
                         testing::Combine(testing::Values("smollm3_thirds", "olmo3_thirds", "falcon_thirds"),
                                          testing::Values(2, 3)),
                         test_name);
// Groups of heads that several ranks have heads of.
INSTANTIATE_TEST_SUITE_P(FewGroups, TensorParallel,
                         testing::Combine(testing::Values("granitemoehybrid", "bamba", "falcon_h1"),
                                          testing::Values(3, 4)),
                         test_name);

class ExpertParallel : public TensorParallel {};

TEST_P(ExpertParallel, LogprobsAreThoseOfOneProcess) {
  const auto& [name, num_ranks] = GetParam();
  expect_near_logprobs(name, logits_of_ranks(name, num_ranks, "", kWholePrompt, true), logits_of_one(name), 1e-4);
}

TEST_P(ExpertParallel, EveryRunHasTheSameBitsHoweverThePromptIsCut) {
  const auto& [name, num_ranks] = GetParam();
  const std::vector<Rows> first = logits_of_ranks(name, num_ranks, "", kWholePrompt, true);
  EXPECT_EQ(logits_of_ranks(name, num_ranks, "", /*chunk=*/7, true), first);
}

// Tensors of each expert, stacks with a bias and rows in turns, scales beside; experts dealt out evenly or not.
INSTANTIATE_TEST_SUITE_P(Mixtures, ExpertParallel,
                         testing::Combine(testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2",
                                                          "deepseek_v3", "gpt_oss", "llama4"),
                                          testing::Values(2, 3, 4)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(MixtureOfScaledBlocks, ExpertParallel,
                         testing::Values(std::tuple("deepseek_v3_fp8_blocks", 2)), test_name);

// Rounded at load: blocks are cut whole, so that the same numbers are rounded alike.
TEST(TensorParallelRounded, LogprobsAreThoseOfOneProcess) {
  for (const char* quantization : {"int8", "int4"}) {
    SCOPED_TRACE(quantization);
    expect_near_logprobs("llama", logits_of_ranks("llama", 2, quantization), logits_of_one("llama", quantization),
                         1e-4);
  }
}

TEST(TensorParallelPlan, ARankHoldsItsPartAlone) {
  const auto backend = one_thread();
  auto checkpoint = checkpoint::Checkpoint::open(tiny_path("llama")).value();
  EngineConfig config{.kv_cache_memory_bytes = 1 << 20};
  const PlannedModel whole = plan_model(config, *checkpoint, *backend, 0).value();
  config.tensor_parallel_size = 2;
  int64_t together = 0;
  for (config.rank = 0; config.rank < 2; ++config.rank) {
    const PlannedModel part = plan_model(config, *checkpoint, *backend, 0).value();
    together += part.memory.weight_bytes;
    EXPECT_EQ(part.memory.kv_token_bytes * 2, whole.memory.kv_token_bytes);
    EXPECT_LT(part.memory.weight_bytes, whole.memory.weight_bytes * 6 / 10);
  }
  EXPECT_GE(together, whole.memory.weight_bytes);
}

TEST(ExpertParallelPlan, ARankHoldsItsExpertsAlone) {
  const auto backend = one_thread();
  auto checkpoint = checkpoint::Checkpoint::open(tiny_path("mixtral")).value();
  EngineConfig config{.kv_cache_memory_bytes = 1 << 20};
  config.tensor_parallel_size = 2;
  for (config.rank = 0; config.rank < 2; ++config.rank) {
    config.enable_expert_parallel = false;
    const int64_t cut = plan_model(config, *checkpoint, *backend, 0)->memory.weight_bytes;
    config.enable_expert_parallel = true;
    EXPECT_EQ(plan_model(config, *checkpoint, *backend, 0)->memory.weight_bytes, cut);
  }
}

TEST(ExpertParallelPlan, WithoutEnoughExpertsItIsRefused) {
  const auto backend = one_thread();
  EngineConfig config{.kv_cache_memory_bytes = 1 << 20};
  config.tensor_parallel_size = 2;
  config.enable_expert_parallel = true;
  auto dense = checkpoint::Checkpoint::open(tiny_path("llama")).value();
  EXPECT_THAT(plan_model(config, *dense, *backend, 0).status().message(),
              testing::HasSubstr("enable_expert_parallel: the model has no experts"));
  nn::Loader loader(nn::Loader::Mode::kPlan, *dense, *backend, Quantization::kNone, {},
                    {.rank = 0, .size = 5, .whole_experts = true});
  nn::ExpertShape shape{.num_experts = 4, .hidden_size = 64, .intermediate_size = 64};
  nn::ExpertLinear::share(loader, "model.layers.0.mlp.", shape);
  const std::string_view all[] = {".weight"};
  EXPECT_THAT(loader.finish(all).message(), testing::HasSubstr("4 experts are too few for tensor_parallel_size 5"));
}

TEST(TensorParallelPlan, WhatCannotBeCutIsRefusedByName) {
  const auto backend = one_thread();
  const auto refusal = [&](const std::string& name, int32_t size) {
    auto checkpoint = checkpoint::Checkpoint::open(tiny_path(name)).value();
    EngineConfig config{.kv_cache_memory_bytes = 1 << 20};
    config.tensor_parallel_size = size;
    const auto planned = plan_model(config, *checkpoint, *backend, 0);
    EXPECT_EQ(planned.status().code(), StatusCode::kInvalidArgument);
    return planned.status().message();
  };
  EXPECT_THAT(refusal("llama", 8), testing::HasSubstr("tensor_parallel_size 8: the 4 heads"));
  // Blocks of 256 values, heads of 64: pieces of two kv heads, of which there are two.
  EXPECT_THAT(nn::share_heads(6, 3, 4, 0, 3).status().message(),
              testing::HasSubstr("at multiples of 4, whose weights share scales"));
}

TEST(Shares, AreWholeUnitsAndTogetherAll) {
  for (const int64_t total : {1, 5, 64, 1000, 1536}) {
    for (const int64_t unit : {1, 3, 32}) {
      for (int size = 1; size <= 8; ++size) {
        int64_t end = 0;
        for (int rank = 0; rank < size; ++rank) {
          const nn::Range own = nn::even_share(total, unit, rank, size);
          if ((total + unit - 1) / unit < size) {
            EXPECT_EQ(own.count, 0);
            continue;
          }
          EXPECT_EQ(own.first, end);
          EXPECT_EQ(own.first % unit, 0);
          EXPECT_GT(own.count, 0);
          end = own.end();
        }
        if (end != 0) {
          EXPECT_EQ(end, total);
        }
      }
    }
  }
}

TEST(Shares, EveryHeadIsSomebodysAndEveryRankHasTheKeysThatItReads) {
  for (const int32_t kv_heads : {1, 2, 3, 8}) {
    for (const int32_t group : {1, 3, 4, 8}) {
      for (int size = 1; size <= 8; ++size) {
        std::vector<int> owners(static_cast<size_t>(kv_heads * group));
        bool possible = true;
        for (int rank = 0; rank < size; ++rank) {
          const auto share = nn::share_heads(kv_heads * group, kv_heads, 1, rank, size);
          possible = possible && share.ok();
          if (!share.ok()) continue;
          EXPECT_EQ(share->heads.count % share->kv_heads.count, 0);
          const int64_t own_group = share->heads.count / share->kv_heads.count;
          for (int64_t i = 0; i < share->heads.count; ++i) {
            ++owners[static_cast<size_t>(share->heads.first + i)];
            EXPECT_EQ((share->heads.first + i) / group, share->kv_heads.first + i / own_group);
          }
        }
        if (possible) {
          EXPECT_EQ(owners, std::vector<int>(owners.size(), 1)) << kv_heads << "x" << group << " for " << size;
        } else {
          EXPECT_GT(size, kv_heads);
        }
      }
    }
  }
}

TEST(Shares, RanksMeetWithinAGroupWhereTheFullestHasLessToDoSo) {
  const auto share = [](int32_t heads, int32_t kv_heads, int64_t unit, int rank, int size) {
    return nn::share_heads(heads, kv_heads, unit, rank, size, /*cuts_groups=*/true).value();
  };
  const auto is = [](const nn::HeadShare& own, const nn::Range& heads, const nn::Range& kv_heads) {
    EXPECT_EQ(own.heads, heads) << own.heads.first << " + " << own.heads.count;
    EXPECT_EQ(own.kv_heads, kv_heads) << own.kv_heads.first << " + " << own.kv_heads.count;
  };
  is(share(9, 3, 1, 0, 2), {0, 5}, {0, 2});
  is(share(9, 3, 1, 1, 2), {5, 4}, {1, 2});
  is(share(15, 5, 1, 3, 4), {12, 3}, {4, 1});
  // No gain: the fullest would have as much, or the groups come out even.
  is(share(9, 3, 1, 1, 4), nn::share_heads(9, 3, 1, 1, 4)->heads, nn::share_heads(9, 3, 1, 1, 4)->kv_heads);
  is(share(32, 8, 1, 1, 4), {8, 8}, {2, 2});
  // Pieces of four heads, where groups of three would only be cut at twelve.
  EXPECT_FALSE(nn::share_heads(12, 4, 4, 1, 2).ok());
  is(share(12, 4, 4, 0, 2), {0, 8}, {0, 3});
  is(share(12, 4, 4, 1, 2), {8, 4}, {2, 2});
}

}  // namespace
}  // namespace quire::runner
