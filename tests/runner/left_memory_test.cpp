// I3: what another request has left in the cache or in the memory that steps compute in is in no answer, and what
// nobody has written is not read.
#include <tuple>

#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

class LeftMemory : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(LeftMemory, IsInNoAnswer) {
  const auto& [family, kind] = GetParam();
  const auto backend = make_test_backend(kind);
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  std::vector<TokenId> prompt;
  std::vector<TokenId> others;
  for (int32_t i = 0; i < 21; ++i) prompt.push_back(3 + i * i % 50);  // more than a block
  for (int32_t i = 0; i < 60; ++i) others.push_back(5 + i * i * i % 47);
  for (const std::string format : {"auto", "fp8", "int8"}) {
    if (family == "deepseek_v3" && format == "int8") continue;
    if (cards::is_emulated(kind) && format == "int8") continue;  // takes an emulated device long
    SCOPED_TRACE(format);
    TinyModel model(family, *backend, format);
    const auto alone = model.logits(prompt, 11);
    // Another's tokens in the same blocks and further ones.
    const auto of_others = model.logits(others, 16);
    EXPECT_TRUE(of_others.back() != alone.back());
    EXPECT_TRUE(model.logits(prompt, 11) == alone) << "after another's tokens";
    // No number in every format, and the numbers 1.5, 1.6, 30 and 60 or so of F16, BF16, E4M3 and I8.
    for (const uint8_t byte : {uint8_t{0xff}, uint8_t{0x3e}}) {
      model.fill_memory(byte);
      EXPECT_TRUE(model.logits(prompt, 11) == alone) << "in memory filled with " << int{byte};
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LeftMemory,
                         testing::Combine(testing::Values("llama", "gemma3", "deepseek_v3", "gpt_oss"),
                                          testing::Values("reference", "portable", "avx2", "avx512", "cuda")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace quire::runner
