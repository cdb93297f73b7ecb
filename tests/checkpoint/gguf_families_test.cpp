// What GGUF files of the families beside llama say, in the words of config.json and Hugging Face's names.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/file_writers.h"

namespace quire::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

GgufWriter header(const std::string& name) {
  GgufWriter writer;
  writer.string("general.architecture", name);
  writer.u32(name + ".block_count", 2).u32(name + ".context_length", 128).u32(name + ".embedding_length", 32);
  writer.u32(name + ".feed_forward_length", 64).u32(name + ".attention.head_count", 4).u32(name + ".vocab_size", 4);
  if (name == "gpt2") {
    writer.f32("gpt2.attention.layer_norm_epsilon", 0.25f);
  } else {
    writer.f32(name + ".attention.layer_norm_rms_epsilon", 0.25f);
  }
  return writer;
}

GgufWriter& vector(GgufWriter& writer, std::string_view name) {
  return writer.tensor(name, {4}, 0, bytes_of<float>({1, 2, 3, 4}));
}

class GgufFamiliesTest : public testing::Test {
 protected:
  std::shared_ptr<const Checkpoint> open(const GgufWriter& writer) {
    auto checkpoint = Checkpoint::open(write_file(directory_.path() / "model.gguf", writer.build()));
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    return checkpoint.ok() ? *checkpoint : nullptr;
  }

 private:
  TemporaryDirectory directory_;
};

TEST_F(GgufFamiliesTest, GivenGemma3ThenItsNormsAreWholeAndItsNamesItsOwn) {
  GgufWriter writer = header("gemma3");
  writer.u32("gemma3.attention.key_length", 16).u32("gemma3.attention.sliding_window", 512);
  for (const char* name : {"blk.1.ffn_norm.weight", "blk.1.post_ffw_norm.weight", "blk.1.post_attention_norm.weight",
                           "blk.1.attn_q_norm.weight"}) {
    vector(writer, name);
  }
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  const boost::json::object& config = checkpoint->config();
  EXPECT_EQ(config.at("architectures"), (boost::json::array{"Gemma3ForCausalLM"}));
  EXPECT_EQ(config.at("quire_norms_whole"), true);
  EXPECT_EQ(config.at("query_pre_attn_scalar"), 16);
  EXPECT_EQ(config.at("num_key_value_heads"), 4) << "absent means as many as heads";
  EXPECT_EQ(config.at("sliding_window"), 512);
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(
      names,
      ElementsAre("model.layers.1.pre_feedforward_layernorm.weight", "model.layers.1.post_feedforward_layernorm.weight",
                  "model.layers.1.post_attention_layernorm.weight", "model.layers.1.self_attn.q_norm.weight"));
}

TEST_F(GgufFamiliesTest, GivenGemma3WithoutAWindowThenNoneIsMadeUp) {
  const auto checkpoint = open(header("gemma3"));
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_TRUE(checkpoint->config().at("sliding_window").is_null());
}

TEST_F(GgufFamiliesTest, GivenGemma3sWindowsAsAListThenEachLayerHasItsType) {
  GgufWriter writer = header("gemma3");
  writer.u32("gemma3.attention.sliding_window", 512);
  writer.numbers<uint8_t>("gemma3.attention.sliding_window_pattern", GgufValueType::kBool, {1, 0});
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().at("layer_types"), (boost::json::array{"sliding_attention", "full_attention"}));
  EXPECT_FALSE(checkpoint->config().contains("sliding_window_pattern"));
}

TEST_F(GgufFamiliesTest, GivenMixtralFromBeforeItsExpertsWereStacksThenEachHasATensorOfItsOwn) {
  GgufWriter writer = header("llama");
  writer.u32("llama.expert_count", 2).u32("llama.expert_used_count", 1);
  for (const char* name : {"blk.1.ffn_gate.0.weight", "blk.1.ffn_up.1.weight", "blk.1.ffn_down.12.weight",
                           "blk.1.ffn_gate.01.weight", "blk.1.attn_q.1.weight"}) {
    vector(writer, name);
  }
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().at("architectures"), (boost::json::array{"MixtralForCausalLM"}));
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(
      names, ElementsAre("model.layers.1.mlp.experts.0.gate_proj.weight", "model.layers.1.mlp.experts.1.up_proj.weight",
                         "model.layers.1.mlp.experts.12.down_proj.weight", "blk.1.ffn_gate.01.weight",
                         "blk.1.attn_q.1.weight"));
}

TEST_F(GgufFamiliesTest, GivenDeepseeksLayersOfFurtherTokensThenTheyAreNotTheModelsOwn) {
  GgufWriter writer = header("deepseek2");
  writer.u32("deepseek2.attention.key_length", 24).u32("deepseek2.attention.value_length", 16);
  writer.u32("deepseek2.attention.kv_lora_rank", 32).u32("deepseek2.rope.dimension_count", 8);
  writer.u32("deepseek2.expert_count", 4).u32("deepseek2.expert_used_count", 2);
  writer.u32("deepseek2.expert_feed_forward_length", 32).u32("deepseek2.expert_shared_count", 1);
  writer.u32("deepseek2.expert_gating_func", 2).u32("deepseek2.nextn_predict_layers", 1);
  vector(writer, "blk.1.nextn.enorm.weight");
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().at("num_hidden_layers"), 1);
  EXPECT_EQ(checkpoint->config().at("num_nextn_predict_layers"), 1);
}

TEST_F(GgufFamiliesTest, GivenARotaryPartOutsideTheHeadThenTheErrorNamesBoth) {
  const TemporaryDirectory directory;
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& [key, rotary] :
       {std::pair{kLeast, kMost}, std::pair{kMost, kLeast}, std::pair<int64_t, int64_t>{8, 16}}) {
    GgufWriter writer = header("deepseek2");
    writer.number("deepseek2.attention.key_length", GgufValueType::kInt64, key);
    writer.number("deepseek2.rope.dimension_count", GgufValueType::kInt64, rotary);
    writer.u32("deepseek2.attention.value_length", 16).u32("deepseek2.attention.kv_lora_rank", 32);
    const auto refused = Checkpoint::open(write_file(directory.path() / "model.gguf", writer.build()));
    ASSERT_FALSE(refused.ok());
    EXPECT_THAT(refused.status().message(), HasSubstr("deepseek2.rope.dimension_count"));
    EXPECT_THAT(refused.status().message(), HasSubstr(std::to_string(key)));
  }
}

TEST_F(GgufFamiliesTest, GivenPhi3sFactorsThenTheyBecomeAConfigurationOfLongrope) {
  GgufWriter writer = header("phi3");
  writer.u32("phi3.rope.scaling.original_context_length", 64).f32("phi3.rope.scaling.attn_factor", 1.25f);
  writer.u32("phi3.attention.sliding_window", 0);
  vector(writer, "rope_factors_long.weight");
  writer.tensor("rope_factors_short.weight", {4}, 0, bytes_of<float>({1, 1, 1, 1.5f}));
  vector(writer, "blk.0.attn_qkv.weight");
  vector(writer, "blk.0.ffn_up.weight");
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  const boost::json::object& config = checkpoint->config();
  const boost::json::object& rope = config.at("rope_parameters").as_object();
  EXPECT_EQ(rope.at("rope_type"), "longrope");
  EXPECT_EQ(rope.at("long_factor"), (boost::json::array{1.0, 2.0, 3.0, 4.0}));
  EXPECT_EQ(rope.at("short_factor"), (boost::json::array{1.0, 1.0, 1.0, 1.5}));
  EXPECT_EQ(rope.at("attention_factor"), 1.25);
  EXPECT_EQ(config.at("original_max_position_embeddings"), 64);
  EXPECT_TRUE(config.at("sliding_window").is_null()) << "0 is none";
  EXPECT_NE(checkpoint->find("model.layers.0.self_attn.qkv_proj.weight"), nullptr);
  EXPECT_NE(checkpoint->find("model.layers.0.mlp.gate_up_proj.weight"), nullptr);
}

TEST_F(GgufFamiliesTest, GivenGraniteThenItsHeadsArePermutedAndItsMultipliersRead) {
  GgufWriter writer = header("granite");
  writer.f32("granite.attention.scale", 0.5f).f32("granite.embedding_scale", 12.0f);
  writer.f32("granite.residual_scale", 0.25f).f32("granite.logit_scale", 8.0f);
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  const boost::json::object& config = checkpoint->config();
  EXPECT_EQ(config.at("quire_rope_interleaved"), true);
  EXPECT_EQ(config.at("attention_multiplier"), 0.5);
  EXPECT_EQ(config.at("embedding_multiplier"), 12.0);
  EXPECT_EQ(config.at("residual_multiplier"), 0.25);
  EXPECT_EQ(config.at("logits_scaling"), 8.0);
}

TEST_F(GgufFamiliesTest, GivenGpt2ThenItsMatricesAreNotTransposedAnyMore) {
  GgufWriter writer = header("gpt2");
  vector(writer, "position_embd.weight");
  vector(writer, "blk.0.attn_qkv.bias");
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->config().at("quire_transposed_weights"), false);
  EXPECT_EQ(checkpoint->config().at("n_embd"), 32);
  EXPECT_EQ(checkpoint->config().at("layer_norm_epsilon"), 0.25);
  EXPECT_NE(checkpoint->find("transformer.wpe.weight"), nullptr);
  EXPECT_NE(checkpoint->find("transformer.h.0.attn.c_attn.bias"), nullptr);
}

TEST_F(GgufFamiliesTest, GivenQwenAndOlmoThenHeadsAreAsTheyWere) {
  for (const char* name : {"qwen2", "qwen3", "olmo2", "glm4", "gemma2"}) {
    const auto checkpoint = open(header(name));
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(checkpoint->config().at("quire_rope_interleaved"), false) << name;
  }
}

}  // namespace
}  // namespace quire::checkpoint
