// Tiny checkpoints whose weights are rounded while they are loaded, against the answers that Hugging Face's
// transformers gave of the stored weights in float32.
#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>

#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

// Mean absolute difference of the prompts' log-probabilities from the record.
double mean_difference(TinyModel& model, const std::vector<GoldenCase>& cases) {
  double sum = 0;
  size_t count = 0;
  for (const GoldenCase& one : cases) {
    const auto rows = model.logits(one.prompt, 2048);
    for (size_t i = 0; i < one.prompt_logprobs.size(); ++i, ++count)
      sum += std::fabs(log_softmax(rows[i], one.prompt[i + 1]) - one.prompt_logprobs[i]);
  }
  return sum / static_cast<double>(count);
}

// How far the recorded log-probabilities lie from their mean: these models' weights are random, and their logits spread
// as far as those of a trained model that is sure.
double spread(const std::vector<GoldenCase>& cases) {
  double sum = 0;
  double squares = 0;
  double count = 0;
  for (const GoldenCase& one : cases) {
    for (const double logprob : one.prompt_logprobs) {
      sum += logprob;
      squares += logprob * logprob;
      ++count;
    }
  }
  return std::sqrt(squares / count - sum / count * (sum / count));
}

class QuantizedModels : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

// Rounding to 8 bits follows from the format alone, so that the reference's scalar rounding is as far from the record;
// scales of 4 bits are searched for, and a single model of a few thousand weights gains or loses by it.
TEST_P(QuantizedModels, LogprobsAreAsFarFromTheRecordAsTheFormatMakesThem) {
  const auto& [name, kind] = GetParam();
  // Of 16 bits, so that what is measured is the weights' rounding.
  auto backend = make_test_backend(kind, ActivationDType::kInt16);
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  auto reference = ops::make_reference_backend();
  const auto cases = read_golden(name);
  ASSERT_FALSE(cases.empty());
  std::map<std::string, double> found;
  TinyModel stored(name, *backend);
  found["none"] = mean_difference(stored, cases);
  for (const char* quantization : {"int8", "fp8", "int4"}) {
    TinyModel model(name, *backend, "float32", {}, quantization);
    found[quantization] = mean_difference(model, cases);
    EXPECT_LT(model.weight_bytes(), stored.weight_bytes()) << quantization;
    if (std::string_view(quantization) == "int4") continue;
    TinyModel plain(name, *reference, "float32", {}, quantization);
    // The reference is slow: the first prompt of several tokens.
    const auto several =
        std::ranges::find_if(cases, [](const GoldenCase& one) { return one.prompt_logprobs.size() > 8; });
    ASSERT_NE(several, cases.end());
    const double expected = mean_difference(plain, {*several});
    EXPECT_GT(expected, 0);
    EXPECT_NEAR(mean_difference(model, {*several}), expected, 0.03 * expected) << quantization;
  }
  SCOPED_TRACE(testing::Message() << "of " << spread(cases) << ": none " << found["none"] << ", int8 " << found["int8"]
                                  << ", fp8 " << found["fp8"] << ", int4 " << found["int4"]);
  EXPECT_GT(found["int8"], 100 * found["none"]);
  EXPECT_GT(found["fp8"], 2 * found["int8"]);
  EXPECT_GT(found["int4"], found["fp8"]);
  EXPECT_LT(found["int8"], 0.13 * spread(cases));
  EXPECT_LT(found["fp8"], 0.4 * spread(cases));
  EXPECT_LT(found["int4"], 0.75 * spread(cases));
}

TEST_P(QuantizedModels, LogitsAreTheSameBitsHoweverThePromptIsCut) {
  const auto& [name, kind] = GetParam();
  auto backend = make_test_backend(kind);
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  if (cards::is_card(kind)) GTEST_SKIP() << "a card's products of few and of many rows differ in their order of sums";
  const auto cases = read_golden(name);
  for (const char* quantization : {"int8", "int4", "fp8"}) {
    TinyModel model(name, *backend, "float32", {}, quantization);
    const auto whole = model.logits(cases.front().prompt, 2048);
    for (int32_t chunk : {1, 7}) EXPECT_EQ(model.logits(cases.front().prompt, chunk), whole) << quantization;
  }
}

INSTANTIATE_TEST_SUITE_P(AllBackends, QuantizedModels,
                         testing::Combine(testing::Values("llama", "qwen2", "gemma3", "phi3", "gpt2", "opt", "mixtral",
                                                          "qwen2_moe", "deepseek_v2", "gpt_oss"),
                                          testing::Values("portable", "avx2", "avx512")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

INSTANTIATE_TEST_SUITE_P(OnACard, QuantizedModels, testing::Combine(testing::Values("llama"), testing::Values("cuda")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace quire::runner
