// Random weights in place of a model's files: every family is made of its config.json alone.
#include <cmath>
#include <filesystem>

#include "runner/open_checkpoint.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

class DummyModels : public testing::TestWithParam<std::string> {};

TEST_P(DummyModels, AreTheShapesThatTheirFilesHaveAndGiveNumbers) {
  auto backend = make_test_backend("auto");
  const TinyModel stored(GetParam(), *backend);
  TinyModel dummy(GetParam(), *backend, "auto", {}, "", LoadFormat::kDummy);
  EXPECT_EQ(dummy.config().num_layers, stored.config().num_layers);
  EXPECT_EQ(dummy.weight_bytes(), stored.weight_bytes());
  const auto rows = dummy.logits({1, 2, 3, 4, 5}, 2048);
  ASSERT_EQ(rows.size(), 5u);
  double largest = 0;
  for (const float logit : rows.back()) {
    ASSERT_TRUE(std::isfinite(logit));
    largest = std::max(largest, std::abs(static_cast<double>(logit)));
  }
  EXPECT_GT(largest, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, DummyModels,
                         testing::Values("llama", "qwen2", "qwen3", "olmo2", "granite", "phi3", "glm4", "gemma2",
                                         "gemma3", "gpt2", "opt", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2",
                                         "deepseek_v3", "gpt_oss", "gemma", "olmo3", "olmoe", "smollm3", "seed_oss",
                                         "ernie4_5", "exaone4", "ministral", "glm4_moe", "dots1", "granitemoe",
                                         "ernie4_5_moe", "glm4_moe_lite", "minimax_m2", "starcoder2", "stablelm",
                                         "stablelm_parallel", "phi", "cohere", "cohere2", "gemma4", "gemma4_dense",
                                         "gemma4_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "granitemoehybrid",
                                         "lfm2", "lfm2_moe", "bamba", "falcon_h1", "nemotron_h", "nemotron_h_narrow",
                                         "olmo_hybrid", "exaone_moe", "ministral3", "mistral4", "afmoe", "apertus",
                                         "cohere_plus", "stablelm_12b", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama4",
                                         "arcee", "nemotron", "olmo", "gpt_neox", "gpt_neox_serial", "falcon",
                                         "falcon_new", "gpt_bigcode"),
                         [](const auto& test) { return test.param; });

TEST(DummyModels, NeedAConfigurationAndNoWeights) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "quire-dummy";
  std::filesystem::create_directories(folder);
  EngineConfig config{.model = folder.string()};
  config.load_format = LoadFormat::kDummy;
  EXPECT_EQ(open_checkpoint(config).status().code(), StatusCode::kNotFound);

  std::filesystem::copy_file(tiny_path("llama") + "/config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  for (const std::filesystem::path& path : {folder, folder / "config.json"}) {
    config.model = path.string();
    const auto opened = open_checkpoint(config);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
  }
  std::filesystem::copy_file(tiny_path("llama_fp8_rows") + "/config.json", folder / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(open_checkpoint(config).status().code(), StatusCode::kUnimplemented);
  config.load_format = LoadFormat::kAuto;
  config.model = folder.string();
  EXPECT_FALSE(open_checkpoint(config).ok());
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace quire::runner
