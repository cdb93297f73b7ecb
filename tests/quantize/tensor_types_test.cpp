#include "quantize/tensor_types.h"

#include <gtest/gtest.h>

#include <map>

namespace quire::quantize {
namespace {

DType type_of(const std::string& mix, const std::string& tensor, MixModel model = {},
              const Shape& shape = {1024, 1024}) {
  if (model.num_layers == 0) model.num_layers = 32;
  if (model.architecture.empty()) model.architecture = "llama";
  return choose_type(find_gguf_mix(mix).value(), model, tensor, DType::kF16, shape);
}

TEST(TensorTypes, AMediumMixGivesValuesAndDownMoreBitsInSomeLayers) {
  // Of 32 layers: the first 4, the last 4, and every third between.
  for (int layer = 0; layer < 32; ++layer) {
    const bool more = layer < 4 || layer >= 28 || (layer - 4) % 3 == 2;
    for (const char* stem : {"attn_v", "ffn_down"}) {
      const std::string tensor = fmt::format("blk.{}.{}.weight", layer, stem);
      EXPECT_EQ(type_of("Q4_K_M", tensor), more ? DType::kQ6_K : DType::kQ4_K) << tensor;
      EXPECT_EQ(type_of("q5_k_m", tensor), more ? DType::kQ6_K : DType::kQ5_K) << tensor;
      EXPECT_EQ(type_of("q4_0", tensor), DType::kQ4_0) << tensor;
    }
    EXPECT_EQ(type_of("q4_k_m", fmt::format("blk.{}.attn_q.weight", layer)), DType::kQ4_K);
    EXPECT_EQ(type_of("q4_k_s", fmt::format("blk.{}.attn_v.weight", layer)), layer < 4 ? DType::kQ5_K : DType::kQ4_K);
    EXPECT_EQ(type_of("q4_k_s", fmt::format("blk.{}.ffn_down.weight", layer)), layer < 4 ? DType::kQ5_K : DType::kQ4_K);
  }
}

TEST(TensorTypes, TheHeadHasSixOrEightBits) {
  EXPECT_EQ(type_of("q4_k_m", "output.weight", {.has_output = true}), DType::kQ6_K);
  EXPECT_EQ(type_of("q4_k_m", "token_embd.weight", {.has_output = true}), DType::kQ4_K);
  EXPECT_EQ(type_of("q4_k_m", "token_embd.weight"), DType::kQ6_K) << "tied";
  EXPECT_EQ(type_of("q4_0", "token_embd.weight"), DType::kQ6_K);
  EXPECT_EQ(type_of("q8_0", "output.weight", {.has_output = true}), DType::kQ8_0);
  EXPECT_EQ(type_of("q4_k_m", "token_embd.weight", {}, {1024, 576}), DType::kQ8_0) << "no whole blocks of 256";
}

TEST(TensorTypes, RowsOfNoWholeBlocksFallBack) {
  const std::map<std::string, DType> expected = {
      {"q4_k_m", DType::kQ5_0}, {"q5_k_m", DType::kQ5_1}, {"q6_k", DType::kQ8_0}, {"q4_0", DType::kQ4_0}};
  for (const auto& [mix, type] : expected) {
    EXPECT_EQ(type_of(mix, "blk.10.attn_q.weight", {}, {64, 576}), type) << mix;
    EXPECT_EQ(type_of(mix, "blk.10.attn_q.weight", {}, {64, 40}), DType::kF16) << mix;
  }
}

TEST(TensorTypes, NormsRoutersAndVectorsAreNotRounded) {
  EXPECT_EQ(type_of("q4_0", "blk.0.attn_norm.weight", {}, {1024}), DType::kF32);
  EXPECT_EQ(type_of("q4_0", "blk.0.attn_q.bias", {}, {1024}), DType::kF32);
  EXPECT_EQ(type_of("q4_0", "blk.0.ffn_gate_inp.weight"), DType::kF16);
  EXPECT_EQ(type_of("q4_0", "position_embd.weight"), DType::kF16);
  EXPECT_EQ(type_of("bf16", "blk.0.attn_q.weight"), DType::kBF16);
}

TEST(TensorTypes, EightExpertsShareMoreBits) {
  const MixModel mixtral{.num_experts = 8};
  EXPECT_EQ(type_of("q4_k_m", "blk.9.attn_v.weight", mixtral), DType::kQ8_0);
  EXPECT_EQ(type_of("q4_k_m", "blk.9.attn_k.weight", mixtral), DType::kQ8_0);
  EXPECT_EQ(type_of("q4_k_m", "blk.9.attn_output.weight", mixtral), DType::kQ5_K);
  EXPECT_EQ(type_of("q4_k_m", "blk.0.ffn_down_exps.weight", mixtral, {8, 64, 1024}), DType::kQ6_K);
}

TEST(TensorTypes, NamesAreLlamaQuantizesOwn) {
  EXPECT_EQ(find_gguf_mix("Q4_K").value().name, "q4_k_m");
  EXPECT_EQ(find_gguf_mix("q5_K_S").value().file_type, 16u);
  const auto unknown = find_gguf_mix("q3_k_m");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("q4_k_m"), std::string::npos) << unknown.status().message();
}

}  // namespace
}  // namespace quire::quantize
