// --batch-invariant: on a card, too, the same bits however a prompt is cut and whoever is beside it. (On a CPU always:
// tiny_models_test.cpp.)
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

class BatchInvariant : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(BatchInvariant, LogitsAreTheSameBitsHoweverThePromptIsCut) {
  const auto& [name, kind] = GetParam();
  auto card = cards::make_card(2, {.checked = true, .batch_invariant = true});
  if (card == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  TinyModel model(name, *card);
  std::vector<TokenId> prompt = read_golden(name).back().prompt;
  if (cards::is_emulated(kind)) prompt.resize(20);  // takes its time
  const auto whole = model.logits(prompt, 2048);
  EXPECT_GT(whole.size(), 8u);  // more rows than one pass of the product takes
  for (const int32_t chunk : {1, 7}) EXPECT_EQ(model.logits(prompt, chunk), whole) << "chunks of " << chunk;
}

INSTANTIATE_TEST_SUITE_P(Families, BatchInvariant,
                         testing::Combine(testing::Values("llama", "mixtral", "gemma3", "gemma4", "deepseek_v3"),
                                          testing::Values("cuda")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace quire::runner
