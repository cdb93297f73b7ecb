// --dtype: a model whose weights are converted while they are loaded computes what a checkpoint of those weights does.
#include <tuple>

#include <gmock/gmock.h>
#include "tests/runner/bf16_checkpoint.h"

#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

const std::vector<TokenId> kTokens = {3, 17, 44, 9, 21, 60, 2, 35, 50, 7, 11, 28, 1, 40, 13, 5, 19, 33};

// What --dtype leaves alone is a float in the checkpoint too: vectors, and the routers of experts.
std::string with_converted_matrices(const std::string& family) {
  return in_bf16(family, "bf16_matrices",
                 [](std::string_view name, size_t rank) { return rank > 1 && !name.ends_with("mlp.gate.weight"); });
}

TinyModel converted(const std::string& path, ops::Backend& backend, WeightDType dtype) {
  return {path, backend, "float32", {}, "", LoadFormat::kAuto, dtype};
}

class ConvertedModels : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(ConvertedModels, ComputeWhatACheckpointOfThoseWeightsDoes) {
  const auto& [family, kind] = GetParam();
  const auto backend = make_test_backend(kind);
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  TinyModel stored = converted(with_converted_matrices(family), *backend, WeightDType::kAuto);
  TinyModel at_load = converted(family, *backend, WeightDType::kBFloat16);
  EXPECT_EQ(stored.weight_bytes(), at_load.weight_bytes());
  EXPECT_EQ(stored.logits(kTokens, 5), at_load.logits(kTokens, 5));
}

// No bit is lost on the way to floats, and kernels of floats make no other numbers of them.
TEST_P(ConvertedModels, AreTheSameNumbersAsFloats) {
  const auto& [family, kind] = GetParam();
  if (kind != "reference") GTEST_SKIP() << "kernels of BF16 round what they multiply";
  const auto backend = make_test_backend(kind);
  const std::string path = with_converted_matrices(family);
  TinyModel stored = converted(path, *backend, WeightDType::kAuto);
  TinyModel widened = converted(path, *backend, WeightDType::kFloat32);
  EXPECT_GT(widened.weight_bytes(), stored.weight_bytes());
  EXPECT_EQ(stored.logits(kTokens, 5), widened.logits(kTokens, 5));
}

TEST_P(ConvertedModels, StayAsTheyAreWhereTheyAreOfThatTypeAlready) {
  const auto& [family, kind] = GetParam();
  const auto backend = make_test_backend(kind);
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  TinyModel stored = converted(family, *backend, WeightDType::kAuto);
  TinyModel same = converted(family, *backend, WeightDType::kFloat32);
  EXPECT_EQ(stored.weight_bytes(), same.weight_bytes());
  EXPECT_EQ(stored.logits(kTokens, 5), same.logits(kTokens, 5));
}

INSTANTIATE_TEST_SUITE_P(Families, ConvertedModels,
                         testing::Combine(testing::Values("llama", "gpt2", "gemma3", "qwen3_moe", "deepseek_v2"),
                                          testing::Values("reference", "portable", "avx2")),
                         [](const auto& values) {
                           return std::get<0>(values.param) + "_" + std::get<1>(values.param);
                         });

TEST(WeightDtype, TheCacheFollows) {
  const auto backend = make_test_backend("reference");
  auto checkpoint = checkpoint::Checkpoint::open(tiny_path("llama"));
  ASSERT_TRUE(checkpoint.ok());
  for (const auto& [dtype, kv] : {std::pair{WeightDType::kAuto, DType::kF32},
                                  {WeightDType::kFloat32, DType::kF32},
                                  {WeightDType::kFloat16, DType::kF16}}) {
    EngineConfig config{.kv_cache_memory_bytes = 1 << 20};
    config.dtype = dtype;
    const auto planned = plan_model(config, **checkpoint, *backend, 0);
    ASSERT_TRUE(planned.ok());
    EXPECT_EQ(planned->kv_dtype, kv) << name(dtype);
  }
}

}  // namespace
}  // namespace quire::runner
