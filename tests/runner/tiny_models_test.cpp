// Tiny checkpoints against the answers of Hugging Face's transformers in float32.
#include <cmath>
#include <tuple>

#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

TokenId argmax(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class TinyModels : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    const std::string& kind = std::get<1>(GetParam());
    // The record's activations are not rounded.
    backend_ = make_test_backend(kind, cards::is_card(kind) ? ActivationDType::kFloat32 : ActivationDType::kAuto);
    if (backend_ == nullptr) GTEST_SKIP() << "this machine has no " << std::get<1>(GetParam());
    model_ = std::make_unique<TinyModel>(std::get<0>(GetParam()), *backend_, "float32");
    cases_ = read_golden(std::get<0>(GetParam()));
    ASSERT_FALSE(cases_.empty());
  }
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<TinyModel> model_;
  std::vector<GoldenCase> cases_;
};

TEST_P(TinyModels, LogitsAndPromptLogprobsAgreeWithTheReference) {
  constexpr double kLogitTolerance = 2e-3;
  constexpr double kLogprobTolerance = 1e-3;
  double largest = 0;
  for (const GoldenCase& one : cases_) {
    const auto rows = model_->logits(one.prompt, 2048);
    for (size_t i = 0; i < one.last_logits.size(); ++i) {
      ASSERT_NEAR(rows.back()[i], one.last_logits[i], kLogitTolerance);
      largest = std::max(largest, std::fabs(rows.back()[i] - one.last_logits[i]));
    }
    ASSERT_EQ(one.prompt_logprobs.size() + 1, one.prompt.size());
    for (size_t i = 0; i < one.prompt_logprobs.size(); ++i) {
      ASSERT_NEAR(log_softmax(rows[i], one.prompt[i + 1]), one.prompt_logprobs[i], kLogprobTolerance)
          << "position " << i + 1;
    }
  }
  RecordProperty("largest_logit_difference", std::to_string(largest));
  RecordProperty("largest_logit_tolerance", std::to_string(kLogitTolerance));
}

TEST_P(TinyModels, GreedyTokensAgreeWhereTheMarginIsClear) {
  const bool emulated = cards::is_emulated(std::get<1>(GetParam()));
  size_t shortest = SIZE_MAX;
  for (const GoldenCase& one : cases_) shortest = std::min(shortest, one.prompt.size());
  for (const GoldenCase& one : cases_) {
    if (emulated && one.prompt.size() > shortest) continue;  // its first token is that of the logits above
    std::vector<TokenId> tokens = one.prompt;
    const size_t steps = std::min(one.greedy.size(), emulated ? size_t{2} : SIZE_MAX);
    for (size_t i = 0; i < steps; ++i) {
      const TokenId next = argmax(model_->logits(tokens, 2048).back());
      if (one.greedy_margin[i] <= 0.01) break;
      ASSERT_EQ(next, one.greedy[i]) << "step " << i;
      tokens.push_back(next);
    }
  }
}

TEST_P(TinyModels, LogitsAreTheSameBitsHoweverThePromptIsCut) {
  for (const GoldenCase& one : cases_) {
    const auto whole = model_->logits(one.prompt, 2048);
    const std::vector<int32_t> chunks =
        cards::is_emulated(std::get<1>(GetParam())) ? std::vector<int32_t>{7} : std::vector<int32_t>{1, 3, 16, 17};
    for (int32_t chunk : chunks) {
      const auto cut = model_->logits(one.prompt, chunk);
      if (!cards::is_card(std::get<1>(GetParam()))) {
        EXPECT_EQ(cut, whole) << "chunks of " << chunk;
        continue;
      }
      // A card sums few rows in another order than many.
      for (size_t i = 0; i < whole.size(); ++i) {
        for (size_t j = 0; j < whole[i].size(); ++j) ASSERT_NEAR(cut[i][j], whole[i][j], 5e-4) << "chunks of " << chunk;
      }
    }
  }
}

TEST_P(TinyModels, LogitsAreTheSameBitsWhereverTheLayersAreCut) {
  const GoldenCase& one = cases_.front();
  const auto whole = model_->logits(one.prompt, 2048);
  if (model_->config().num_layers < 2) GTEST_SKIP() << "a single layer";
  if (std::get<0>(GetParam()) == "gemma4") GTEST_SKIP() << "layers that share a cache are of one stage";
  for (int32_t layer = 1; layer < model_->config().num_layers; ++layer) {
    model_->cut_at(layer);
    EXPECT_EQ(model_->logits(one.prompt, 2048), whole) << "cut before layer " << layer;
  }
}

INSTANTIATE_TEST_SUITE_P(AllBackends, TinyModels,
                         testing::Combine(testing::Values("llama", "llama3_rope", "llama_linear", "llama_yarn",
                                                          "mistral_swa", "qwen2", "qwen3", "olmo2", "granite", "phi3",
                                                          "glm4", "gemma2", "gemma3", "gpt2", "opt"),
                                          testing::Values("reference", "portable", "avx2", "cuda")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

INSTANTIATE_TEST_SUITE_P(Sparse, TinyModels,
                         testing::Combine(testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2",
                                                          "deepseek_v3", "gpt_oss"),
                                          testing::Values("reference", "portable", "avx2", "cuda")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

// Later families, whose checkpoints scripts/make_tiny_data.py makes.
INSTANTIATE_TEST_SUITE_P(
    Later, TinyModels,
    testing::Combine(testing::Values("gemma", "olmo3", "olmoe", "smollm3", "seed_oss", "ernie4_5", "exaone4",
                                     "ministral", "glm4_moe", "dots1", "granitemoe", "ernie4_5_moe", "glm4_moe_lite",
                                     "minimax_m2", "starcoder2", "stablelm", "stablelm_parallel", "phi", "cohere",
                                     "cohere2", "gemma4", "gemma4_dense", "gemma4_moe", "qwen3_next", "qwen3_5",
                                     "qwen3_5_moe", "granitemoehybrid", "lfm2", "lfm2_moe", "bamba", "falcon_h1",
                                     "nemotron_h", "nemotron_h_narrow", "olmo_hybrid", "exaone_moe", "ministral3",
                                     "mistral4", "afmoe", "apertus", "cohere_plus", "stablelm_12b", "hunyuan_v1_dense",
                                     "hunyuan_v1_moe", "llama4", "arcee", "nemotron", "olmo", "gpt_neox",
                                     "gpt_neox_serial", "falcon", "falcon_new", "gpt_bigcode"),
                     testing::Values("reference", "avx2", "cuda")),
    [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

// Options that the checkpoints above leave at their defaults, or have none of.
INSTANTIATE_TEST_SUITE_P(Options, TinyModels,
                         testing::Combine(testing::Values("llama_yarn_mscale", "qwen3_windows", "glm_untied_bias",
                                                          "gemma2_capless", "gemma3_wrapped", "gpt2_inverse",
                                                          "opt_projected", "qwen2_moe_windows", "deepseek_v3_yarn",
                                                          "gpt_oss_limits"),
                                          testing::Values("reference", "avx2", "cuda")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

// Weights of 8-bit floats with scales beside them: one a row (compressed-tensors), one a block of 16 by 32 (DeepSeek's
// names) or of 128 by 128 (Qwen's, with rows that are no whole blocks and one that has a single one). The answers are
// those of what codes times scales stand for, rounded to BF16 where that is how they are held.
INSTANTIATE_TEST_SUITE_P(
    EightBitFloats, TinyModels,
    testing::Values(std::tuple("llama_fp8_rows", "reference"), std::tuple("llama_fp8_rows", "portable"),
                    std::tuple("llama_fp8_rows", "avx2"), std::tuple("llama_fp8_rows", "cuda"),
                    std::tuple("qwen3_fp8_blocks", "reference"), std::tuple("qwen3_fp8_blocks", "portable"),
                    std::tuple("qwen3_fp8_blocks", "avx2"), std::tuple("qwen3_fp8_blocks", "cuda"),
                    std::tuple("deepseek_v3_fp8_blocks", "reference"), std::tuple("deepseek_v3_fp8_blocks", "portable"),
                    // Not on a card, which multiplies BF16 with BF16.
                    std::tuple("deepseek_v3_fp8_blocks", "avx2")),
    [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

// Short prompts and one beyond the trained length, each also with no more served than was trained.
TEST(TinyLongRope, FactorsGoByThePromptsLengthWhateverIsServed) {
  constexpr int64_t kTrained = 32;
  const auto backend = ops::make_reference_backend();
  for (const int64_t served : {kTrained, 2 * kTrained}) {
    TinyModel model("phi3_longrope", *backend, "auto", served);
    int compared = 0;
    for (const GoldenCase& one : read_golden("phi3_longrope")) {
      if (static_cast<int64_t>(one.prompt.size()) > served) continue;
      const auto rows = model.logits(one.prompt, 7);
      double difference = 0;
      for (size_t i = 0; i < one.last_logits.size(); ++i) {
        difference = std::max(difference, std::abs(static_cast<double>(rows.back()[i]) - one.last_logits[i]));
      }
      EXPECT_LT(difference, 2e-3) << one.prompt.size() << " of " << served;
      ++compared;
    }
    EXPECT_GT(compared, served == kTrained ? 0 : 1);
  }
}

}  // namespace
}  // namespace quire::runner
