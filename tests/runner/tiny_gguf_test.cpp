// The same tiny models as GGUF files, with the names, stacks and metadata that its converter gives them:
// the answers are those recorded from Hugging Face's transformers all the same.
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

class TinyGguf : public testing::TestWithParam<std::string> {};

TEST_P(TinyGguf, LastLogitsAgreeWithTheReference) {
  const auto backend = make_test_backend("portable");
  ASSERT_NE(backend, nullptr);
  TinyModel model("../tiny_gguf/" + GetParam() + ".gguf", *backend);
  const auto cases = read_golden(GetParam());
  ASSERT_FALSE(cases.empty());
  for (const GoldenCase& one : cases) {
    const std::vector<float> last = model.logits(one.prompt, 2048).back();
    for (size_t i = 0; i < one.last_logits.size(); ++i) ASSERT_NEAR(last[i], one.last_logits[i], 2e-3);
  }
}

// Latent attention's projections split by head as newer files have them (deepseek_v3) and together (deepseek_v2).
INSTANTIATE_TEST_SUITE_P(Sparse, TinyGguf,
                         testing::Values("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss"));

// Made by scripts/make_tiny_data.py, with the names of the package gguf.
INSTANTIATE_TEST_SUITE_P(Later, TinyGguf,
                         testing::Values("gemma", "olmo3", "olmoe", "smollm3", "seed_oss", "ernie4_5", "exaone4",
                                         "glm4_moe", "dots1", "granitemoe", "ernie4_5_moe", "minimax_m2", "starcoder2",
                                         "stablelm", "stablelm_parallel", "phi", "cohere", "cohere2", "gemma4",
                                         "gemma4_dense", "gemma4_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe", "lfm2",
                                         "lfm2_moe", "granitemoehybrid", "falcon_h1", "nemotron_h_narrow", "exaone_moe",
                                         "ministral3", "mistral4", "afmoe", "apertus", "cohere_plus", "stablelm_12b",
                                         "hunyuan_v1_dense", "hunyuan_v1_moe", "llama4_scout", "arcee", "nemotron",
                                         "olmo", "gpt_neox", "gpt_neox_serial", "falcon", "falcon_new", "gpt_bigcode"));

}  // namespace
}  // namespace quire::runner
