// Tiny checkpoints in the layouts of AWQ, GPTQ, compressed-tensors, bitsandbytes and HQQ against the answers of Hugging
// Face's transformers in float32, which round activations where the format says so; those of bitsandbytes against
// scripts/make_coded_golden.py, which says why.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "tests/cards/card.h"
#include "tests/runner/dry_backend.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

TokenId likeliest(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::string coded_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/e2e/quant/" + name;
}

class CodedModels : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    backend_ = make_test_backend(std::get<1>(GetParam()), ActivationDType::kFloat32);
    if (backend_ == nullptr) GTEST_SKIP() << "this machine has no " << std::get<1>(GetParam());
    const std::string path = coded_path(std::get<0>(GetParam()));
    model_ = std::make_unique<TinyModel>(path, *backend_, "float32");
    cases_ = read_golden(path);
    ASSERT_FALSE(cases_.empty());
  }
  std::unique_ptr<ops::Backend> backend_;
  std::unique_ptr<TinyModel> model_;
  std::vector<GoldenCase> cases_;
};

// Inputs are rounded to steps: one that lies between two may fall to the other where sums end in another bit, and
// all that follows then differs by a step of one input.
bool rounds_inputs(const std::string& name) {
  for (const char* kind : {"w8a8", "fp8", "int8"}) {
    if (name.find(kind) != std::string::npos) return true;
  }
  return false;
}

TEST_P(CodedModels, PromptLogprobsAgreeWithTheReference) {
  size_t agreeing = 0;
  for (const GoldenCase& one : cases_) {
    const auto rows = model_->logits(one.prompt, 2048);
    double largest = 0;
    for (size_t i = 0; i < one.prompt_logprobs.size(); ++i)
      largest = std::max(largest, std::fabs(log_softmax(rows[i], one.prompt[i + 1]) - one.prompt_logprobs[i]));
    for (size_t i = 0; i < one.last_logits.size(); ++i)
      largest = std::max(largest, 0.1 * std::fabs(rows.back()[i] - one.last_logits[i]));
    if (largest < 1e-4) ++agreeing;
    EXPECT_LT(largest, rounds_inputs(std::get<0>(GetParam())) ? 0.5 : 1e-4) << one.prompt.size() << " tokens";
  }
  EXPECT_GE(agreeing, (cases_.size() + 1) / 2);
}

TEST_P(CodedModels, GreedyTokensAreTheReferences) {
  if (cards::is_card(std::get<1>(GetParam()))) GTEST_SKIP() << "logits of whole prompts are compared";
  for (const GoldenCase& one : cases_) {
    std::vector<TokenId> tokens = one.prompt;
    for (size_t i = 0; i < one.greedy.size(); ++i) {
      if (one.greedy_margin[i] <= (rounds_inputs(std::get<0>(GetParam())) ? 0.5 : 0.001)) break;
      const TokenId next = likeliest(model_->logits(tokens, 2048).back());
      ASSERT_EQ(next, one.greedy[i]) << "step " << i;
      tokens.push_back(next);
    }
  }
}

TEST_P(CodedModels, LogitsAreTheSameBitsHoweverThePromptIsCut) {
  if (cards::is_card(std::get<1>(GetParam())))
    GTEST_SKIP() << "a card's products of few and of many rows differ in their order of sums";
  for (const GoldenCase& one : cases_) {
    const auto whole = model_->logits(one.prompt, 2048);
    for (const int32_t chunk : {1, 3, 17}) EXPECT_EQ(model_->logits(one.prompt, chunk), whole) << "chunks of " << chunk;
  }
}

const auto kBackends = testing::Values("reference", "portable", "avx2", "avx512");
constexpr auto kNameOf = [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); };

// Of a second family, which has biases, one of each.
INSTANTIATE_TEST_SUITE_P(Awq, CodedModels,
                         testing::Combine(testing::Values("llama_awq_g32", "llama_awq_channel", "qwen2_awq_g32"),
                                          kBackends),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Gptq, CodedModels,
                         testing::Combine(testing::Values("llama_gptq_2bit_g32_asym", "llama_gptq_4bit_asym_v2",
                                                          "llama_gptq_4bit_g32", "llama_gptq_4bit_g32_act_order",
                                                          "llama_gptq_8bit_channel", "qwen2_gptq_4bit_g32_act_order"),
                                          kBackends),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(CompressedTensors, CodedModels,
                         testing::Combine(testing::Values("llama_ct_w4a16_g32", "llama_ct_w4a16_g32_asym",
                                                          "llama_ct_w8a16_channel", "llama_ct_w8a8_dynamic",
                                                          "llama_ct_fp8_dynamic", "qwen2_ct_w8a8_dynamic"),
                                          kBackends),
                         kNameOf);
INSTANTIATE_TEST_SUITE_P(Bitsandbytes, CodedModels,
                         testing::Combine(testing::Values("llama_bnb_nf4", "llama_bnb_nf4_double", "llama_bnb_fp4",
                                                          "llama_bnb_int8", "qwen2_bnb_nf4"),
                                          kBackends),
                         kNameOf);

// By the library; the answers are those of its weights in float32 (scripts/make_hqq_data.py).
INSTANTIATE_TEST_SUITE_P(Hqq, CodedModels,
                         testing::Combine(testing::Values("llama_hqq_4bit_g64", "llama_hqq_8bit_g64",
                                                          "llama_hqq_3bit_g64_bf16", "llama_hqq_2bit_g16",
                                                          "llama_hqq_4bit_axis0", "qwen2_hqq_4bit_g64_f32",
                                                          "mixtral_hqq_4bit_g64"),
                                          kBackends),
                         kNameOf);

// Of what rounds its inputs a card has the weights, and numbers as they come; many rows of experts are in 16 bits
// there.
INSTANTIATE_TEST_SUITE_P(
    OnACard, CodedModels,
    testing::Combine(testing::Values("llama_awq_g32", "llama_awq_channel", "llama_gptq_2bit_g32_asym",
                                     "llama_gptq_4bit_asym_v2", "llama_gptq_4bit_g32_act_order",
                                     "qwen2_gptq_4bit_g32_act_order", "llama_gptq_8bit_channel",
                                     "llama_ct_w4a16_g32_asym", "llama_ct_w8a16_channel", "llama_bnb_nf4_double",
                                     "llama_bnb_fp4", "llama_hqq_4bit_g64", "llama_hqq_8bit_g64",
                                     "llama_hqq_3bit_g64_bf16", "llama_hqq_4bit_axis0", "qwen2_hqq_4bit_g64_f32"),
                     testing::Values("cuda")),
    kNameOf);

TEST(CodedWeights, ABackendThatHeedsNoOrderOfInputsIsGivenNumbers) {
  auto real = ops::make_reference_backend();
  DryBackend dry(*real);
  const auto checkpoint = checkpoint::Checkpoint::open(coded_path("llama_gptq_4bit_g32_act_order")).value();
  const nn::WeightSpec spec{"model.layers.0.mlp.down_proj.weight", {64, 128}};
  nn::Loader ordered(nn::Loader::Mode::kLoad, *checkpoint, *real);
  nn::Loader loader(nn::Loader::Mode::kLoad, *checkpoint, dry);
  const nn::StoredWeight weight = loader.weight(spec);
  const auto in_codes = ordered.place({&weight, 1});
  const auto in_numbers = loader.place({&weight, 1});
  ASSERT_EQ(in_codes.size(), 1u);
  ASSERT_EQ(in_numbers.size(), 1u);
  EXPECT_EQ(in_codes[0]->dtype(), DType::kU4_32);
  EXPECT_NE(in_codes[0]->input().order, nullptr);
  EXPECT_EQ(in_numbers[0]->dtype(), DType::kF32);
  EXPECT_TRUE(in_numbers[0]->input().is_plain());
  std::vector<float> x(128);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 11) - 5.0f;
  std::vector<float> first(64), second(64);
  for (auto [matrix, out] : {std::pair(in_codes[0].get(), &first), {in_numbers[0].get(), &second}}) {
    (*real)(ops::LinearArgs{
        .x = x.data(), .x_stride = 128, .num_rows = 1, .weight = matrix, .out = out->data(), .out_stride = 64});
  }
  for (size_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first[i], second[i], 1e-5) << i;
}

// A checkpoint's tensors with every kv_b_proj as whole numbers of 8 bits with a scale a row. `inputs`: what its
// quantization_config says that becomes of the inputs. Returns the folder.
std::string with_coded_kv_b(const std::string& family, const char* folder_name, const boost::json::value& inputs) {
  const std::string folder = testing::TempDir() + folder_name + "_" + family;
  std::filesystem::create_directories(folder);
  std::ifstream config_file(tiny_path(family) + "/config.json");
  boost::json::object config = boost::json::parse(config_file).as_object();
  boost::json::value said = boost::json::parse(R"({
      "quant_method": "compressed-tensors", "format": "int-quantized",
      "config_groups": {"group_0": {"targets": ["re:.*kv_b_proj"],
                                    "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}})");
  said.at_pointer("/config_groups/group_0").as_object()["input_activations"] = inputs;
  config["quantization_config"] = said;
  std::ofstream(folder + "/config.json") << boost::json::serialize(config);

  boost::json::object header;
  std::string data;
  const auto add = [&](const std::string& name, const char* dtype, const Shape& shape, const void* bytes, size_t size) {
    boost::json::array dims;
    for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
    header[name] = {{"dtype", dtype}, {"shape", dims}, {"data_offsets", {data.size(), data.size() + size}}};
    data.append(static_cast<const char*>(bytes), size);
  };
  const auto checkpoint = checkpoint::Checkpoint::open(tiny_path(family)).value();
  for (const checkpoint::CheckpointTensor& tensor : checkpoint->tensors()) {
    const TensorView& view = tensor.view;
    if (!tensor.name.ends_with("kv_b_proj.weight")) {
      add(tensor.name, "F32", view.shape, view.data, static_cast<size_t>(view.bytes()));
      continue;
    }
    const auto* numbers = static_cast<const float*>(view.data);
    const std::vector<float> scales(static_cast<size_t>(view.shape[0]), 0.01f);
    std::vector<int8_t> codes;
    for (int64_t i = 0; i < view.shape.num_elements(); ++i)
      codes.push_back(static_cast<int8_t>(std::clamp(std::nearbyint(numbers[i] / 0.01f), -128.0f, 127.0f)));
    add(tensor.name, "I8", view.shape, codes.data(), codes.size());
    add(tensor.name + "_scale", "F32", {view.shape[0], 1}, scales.data(), scales.size() * sizeof(float));
  }
  const std::string text = boost::json::serialize(header);
  const uint64_t header_size = text.size();
  std::ofstream out(folder + "/model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header_size), sizeof(header_size)) << text << data;
  return folder;
}

// Its inputs are cached as they are; the values' half is multiplied by sums of them, which no format speaks of.
TEST(CodedWeights, OfLatentAttentionRoundNoSumsOfWhatIsCached) {
  auto backend = make_test_backend("auto", ActivationDType::kFloat32);
  const boost::json::value rounded =
      boost::json::parse(R"({"num_bits": 8, "type": "int", "strategy": "token", "dynamic": true, "symmetric": true})");
  TinyModel plain(with_coded_kv_b("deepseek_v2", "plain", nullptr), *backend, "float32");
  TinyModel told(with_coded_kv_b("deepseek_v2", "rounded", rounded), *backend, "float32");
  const std::vector<TokenId> prompt = {5, 9, 300, 17, 44, 1, 2, 3};
  EXPECT_EQ(told.logits(prompt, 2048), plain.logits(prompt, 2048));
}

// Random weights in the codes that a configuration names take what a file's would.
TEST(CodedDummies, AreTheShapesThatTheirFilesHaveAndGiveNumbers) {
  for (const char* name : {"llama_awq_g32", "llama_gptq_4bit_g32"}) {
    SCOPED_TRACE(name);
    auto backend = make_test_backend("auto");
    const TinyModel stored(coded_path(name), *backend);
    TinyModel dummy(coded_path(name), *backend, "auto", {}, "", LoadFormat::kDummy);
    EXPECT_EQ(dummy.weight_bytes(), stored.weight_bytes());
    const std::vector<std::vector<float>> logits = dummy.logits({1, 2, 3}, 2048);
    for (const float logit : logits.back()) ASSERT_TRUE(std::isfinite(logit));
  }
}

}  // namespace
}  // namespace quire::runner
