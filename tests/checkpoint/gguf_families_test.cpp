// What GGUF files of the families beside llama are and what their tensors are called in Hugging Face's names. What of
// their numbers is read: tests/models/gguf_config_test.cpp.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_description.h"
#include "tests/checkpoint/file_writers.h"

namespace quire::checkpoint {
namespace {

using testing::ElementsAre;

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

TEST_F(GgufFamiliesTest, GivenGemma3ThenItsNamesAreItsOwn) {
  GgufWriter writer = header("gemma3");
  writer.u32("gemma3.attention.key_length", 16).u32("gemma3.attention.sliding_window", 512);
  for (const char* name : {"blk.1.ffn_norm.weight", "blk.1.post_ffw_norm.weight", "blk.1.post_attention_norm.weight",
                           "blk.1.attn_q_norm.weight"}) {
    vector(writer, name);
  }
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->gguf()->model_class, "Gemma3ForCausalLM");
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(
      names,
      ElementsAre("model.layers.1.pre_feedforward_layernorm.weight", "model.layers.1.post_feedforward_layernorm.weight",
                  "model.layers.1.post_attention_layernorm.weight", "model.layers.1.self_attn.q_norm.weight"));
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
  EXPECT_EQ(checkpoint->gguf()->model_class, "MixtralForCausalLM");
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint->tensors()) names.push_back(tensor.name);
  EXPECT_THAT(
      names, ElementsAre("model.layers.1.mlp.experts.0.gate_proj.weight", "model.layers.1.mlp.experts.1.up_proj.weight",
                         "model.layers.1.mlp.experts.12.down_proj.weight", "blk.1.ffn_gate.01.weight",
                         "blk.1.attn_q.1.weight"));
}

TEST_F(GgufFamiliesTest, GivenRoutersOfSigmoidsThenTheModelIsDeepseekV3) {
  for (const auto& [function, expected] :
       {std::pair{1, "DeepseekV2ForCausalLM"}, std::pair{2, "DeepseekV3ForCausalLM"}}) {
    GgufWriter writer = header("deepseek2");
    writer.u32("deepseek2.expert_gating_func", static_cast<uint32_t>(function));
    const auto checkpoint = open(writer);
    ASSERT_NE(checkpoint, nullptr);
    EXPECT_EQ(checkpoint->gguf()->model_class, expected);
  }
}

TEST_F(GgufFamiliesTest, GivenPhi3ThenItsFusedProjectionsHaveTheirNames) {
  GgufWriter writer = header("phi3");
  vector(writer, "blk.0.attn_qkv.weight");
  vector(writer, "blk.0.ffn_up.weight");
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_NE(checkpoint->find("model.layers.0.self_attn.qkv_proj.weight"), nullptr);
  EXPECT_NE(checkpoint->find("model.layers.0.mlp.gate_up_proj.weight"), nullptr);
}

TEST_F(GgufFamiliesTest, GivenGpt2ThenItsNamesAreItsOwn) {
  GgufWriter writer = header("gpt2");
  vector(writer, "position_embd.weight");
  vector(writer, "blk.0.attn_qkv.bias");
  const auto checkpoint = open(writer);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_NE(checkpoint->find("transformer.wpe.weight"), nullptr);
  EXPECT_NE(checkpoint->find("transformer.h.0.attn.c_attn.bias"), nullptr);
}

}  // namespace
}  // namespace quire::checkpoint
