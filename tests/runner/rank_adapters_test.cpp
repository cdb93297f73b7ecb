// Adapters of a model whose weights several ranks have parts of, against the answers of Hugging Face's PEFT.
#include <gmock/gmock.h>

#include <thread>

#include "checkpoint/adapter_file.h"
#include "comm/shared_communicator.h"
#include "comm/shared_segment.h"
#include "runner/adapter.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using Rows = std::vector<std::vector<float>>;

std::string shared_adapter_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/e2e/lora/" + name;
}

// What each rank makes of a case, rank 0's kept.
class RankAdapters : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  using Use = std::function<void(TinyModel& model, int rank)>;

  void on_all_ranks(const Use& use, bool whole_experts = false) {
    const auto& [name, num_ranks] = GetParam();
    const std::string family = name.substr(0, name.find('/'));
    const comm::SharedGroupShape shape{.num_ranks = num_ranks, .slot_bytes = 16 << 10};
    auto segment = comm::SharedSegment::create(comm::shared_group_bytes(shape)).value();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_ranks; ++rank) {
      threads.emplace_back([&, rank, path = shared_adapter_path(name)] {
        auto communicator = comm::join_shared_group(segment.data(), shape, {.rank = rank}).value();
        const auto backend =
            ops::make_cpu_backend({.threads = 1, .isa = Isa::kAvx2, .activation_dtype = ActivationDType::kFloat32})
                .value();
        TinyModel model(family, *backend, "float32", {}, "", LoadFormat::kAuto, WeightDType::kAuto, nullptr,
                        communicator.get(), whole_experts);
        const auto file = checkpoint::AdapterFile::open(path);
        ASSERT_TRUE(file.ok()) << file.status().message();
        auto adapter = Adapter::make(**file, model.adapter_host(), *backend);
        EXPECT_TRUE(adapter.ok()) << adapter.status().message();
        if (testing::Test::HasFailure()) return comm::end_shared_group(segment.data(), "a rank has no adapter");
        EXPECT_LE((*adapter)->rank(), 16);
        model.use_adapter(*adapter);
        model.fill_memory(0xff);
        use(model, rank);
        EXPECT_TRUE(communicator->status().ok()) << communicator->status().message();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void expect_reference(bool whole_experts);
};

void RankAdapters::expect_reference(bool whole_experts) {
  const std::vector<GoldenCase> cases = read_golden(shared_adapter_path(std::get<0>(GetParam())));
  ASSERT_FALSE(cases.empty());
  std::vector<Rows> found(cases.size());
  const auto answer = [&](TinyModel& model, int rank) {
    for (size_t i = 0; i < cases.size(); ++i) {
      // The reference's own answer behind the prompt, as long as it is sure of it.
      std::vector<TokenId> tokens = cases[i].prompt;
      tokens.insert(tokens.end(), cases[i].greedy.begin(), cases[i].greedy.end());
      Rows rows = model.logits(tokens, 2048);
      if (rank == 0) found[i] = std::move(rows);
    }
  };
  on_all_ranks(answer, whole_experts);
  for (size_t i = 0; i < cases.size(); ++i) {
    const GoldenCase& one = cases[i];
    ASSERT_EQ(found[i].size(), one.prompt.size() + one.greedy.size());
    for (size_t p = 0; p < one.prompt_logprobs.size(); ++p)
      ASSERT_NEAR(log_softmax(found[i][p], one.prompt[p + 1]), one.prompt_logprobs[p], 1e-4) << "position " << p + 1;
    for (size_t step = 0; step < one.greedy.size() && one.greedy_margin[step] > 1e-3; ++step) {
      const std::vector<float>& logits = found[i][one.prompt.size() - 1 + step];
      ASSERT_EQ(std::ranges::max_element(logits) - logits.begin(), one.greedy[step]) << "step " << step;
    }
  }
}

TEST_P(RankAdapters, LogprobsAndGreedyTokensAreTheReferences) {
  expect_reference(/*whole_experts=*/false);
}

TEST_P(RankAdapters, LogitsAreTheSameBitsHoweverThePromptIsCut) {
  const std::vector<TokenId> prompt = read_golden(shared_adapter_path(std::get<0>(GetParam()))).back().prompt;
  on_all_ranks([&](TinyModel& model, int rank) {
    const Rows whole = model.logits(prompt, 2048);
    const Rows cut = model.logits(prompt, 7);
    if (rank == 0) {
      EXPECT_EQ(cut, whole);
    }
  });
}

std::string rank_test_name(const testing::TestParamInfo<std::tuple<std::string, int>>& test) {
  std::string name = std::get<0>(test.param) + "_" + std::to_string(std::get<1>(test.param));
  std::ranges::replace(name, '/', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Two, RankAdapters,
    testing::Combine(testing::Values("llama/qv", "llama/all_linear", "llama/rslora", "llama/some_layers",
                                     "llama/patterns", "llama/embed_head", "llama/dora", "qwen2/dora", "gpt2/dora",
                                     "opt/dora", "llama/dora_embed", "qwen2/all_linear", "qwen2/embed_head", "gpt2/qv",
                                     "gpt2/all_linear", "opt/all_linear", "gemma2/all_linear", "mistral_swa/rslora",
                                     "mixtral/all_linear", "deepseek_v2/kv_b", "deepseek_v2/latent",
                                     "deepseek_v3/latent", "mixtral/stacks", "mixtral/old_stacks", "qwen3_moe/stacks",
                                     "deepseek_v3/stacks", "gpt_oss/stacks", "llama/tokens", "qwen2/tokens",
                                     "gemma3/tokens"),
                     testing::Values(2)),
    rank_test_name);
// More ranks than kv heads, and parts of unlike sizes.
INSTANTIATE_TEST_SUITE_P(More, RankAdapters,
                         testing::Combine(testing::Values("llama/all_linear", "llama/dora", "llama/embed_head",
                                                          "llama/tokens", "gpt2/dora", "opt/dora", "mixtral/stacks",
                                                          "deepseek_v2/kv_b", "deepseek_v3/stacks", "gpt_oss/stacks"),
                                          testing::Values(3, 4)),
                         rank_test_name);

class ExpertRankAdapters : public RankAdapters {};

TEST_P(ExpertRankAdapters, LogprobsAndGreedyTokensAreTheReferences) {
  expect_reference(/*whole_experts=*/true);
}

INSTANTIATE_TEST_SUITE_P(Mixtures, ExpertRankAdapters,
                         testing::Combine(testing::Values("mixtral/all_linear", "mixtral/stacks", "mixtral/old_stacks",
                                                          "qwen3_moe/stacks", "deepseek_v3/stacks", "gpt_oss/stacks"),
                                          testing::Values(2, 3)),
                         rank_test_name);

}  // namespace
}  // namespace quire::runner
