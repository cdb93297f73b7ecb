// What the families read out of GGUF metadata, and what they refuse by its key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models/registry.h"
#include "tests/checkpoint/file_writers.h"

namespace quire::models {
namespace {

using checkpoint::GgufValueType;
using checkpoint::GgufWriter;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The smallest model of an architecture.
GgufWriter small_model(const std::string& name) {
  GgufWriter writer;
  writer.string("general.architecture", name);
  writer.u32(name + ".block_count", 2).u32(name + ".context_length", 128).u32(name + ".embedding_length", 32);
  writer.u32(name + ".feed_forward_length", 64).u32(name + ".attention.head_count", 4).u32(name + ".vocab_size", 4);
  const bool is_rms =
      name != "gpt2" && name != "cohere2" && name != "stablelm" && name != "falcon" && name != "gptneox";
  writer.f32(name + (is_rms ? ".attention.layer_norm_rms_epsilon" : ".attention.layer_norm_epsilon"), 0.25f);
  if (name == "gpt-oss" || name.starts_with("qwen2moe") || name.starts_with("qwen3moe") || name == "deepseek2") {
    writer.u32(name + ".expert_count", 4).u32(name + ".expert_used_count", 2);
    writer.u32(name + ".expert_feed_forward_length", 48);
  }
  if (name == "gpt-oss") writer.u32("gpt-oss.attention.sliding_window", 16);
  if (name == "deepseek2") {
    writer.u32("deepseek2.attention.key_length", 24).u32("deepseek2.attention.value_length", 16);
    writer.u32("deepseek2.attention.kv_lora_rank", 32).u32("deepseek2.rope.dimension_count", 8);
    writer.u32("deepseek2.expert_shared_count", 2);
  }
  return writer;
}

Result<ModelConfig> read_gguf(const GgufWriter& writer) {
  const checkpoint::TemporaryDirectory directory;
  QUIRE_ASSIGN_OR_RETURN(const auto opened, checkpoint::Checkpoint::open(checkpoint::write_file(
                                                directory.path() / "model.gguf", writer.build())));
  QUIRE_ASSIGN_OR_RETURN(const Family family, find_family(*opened));
  return read_model_config(family, *opened);
}

ModelConfig expect_config(const GgufWriter& writer) {
  const auto config = read_gguf(writer);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : ModelConfig();
}

TEST(GgufConfig, OfALlamaIsWhatItsMetadataSays) {
  const ModelConfig config = expect_config(checkpoint::small_gguf());
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.activation, Activation::kSilu);
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.hidden_size, 32);
  EXPECT_EQ(config.intermediate_size, 64);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 8);
  EXPECT_EQ(config.norm_eps, 0.25);
  EXPECT_EQ(config.max_position, 128);
  EXPECT_EQ(config.vocab_size, 4) << "as many as the tokenizer has";
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_FALSE(config.attention_output_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.attention_scale, 1 / std::sqrt(8.0));
  EXPECT_EQ(config.bos_id, 0);
  EXPECT_THAT(config.eos_ids, ElementsAre(1));
  EXPECT_EQ(config.rope.theta, 500.0);
  EXPECT_EQ(config.rope.rotary_dim, 8);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kNone);
  EXPECT_TRUE(config.rope.interleaved) << "the converter permutes the rows of q and k";
  EXPECT_THAT(config.layer_windows, IsEmpty());
}

TEST(GgufConfig, IntegersOfOtherWidthsMeanTheSame) {
  GgufWriter writer = checkpoint::small_gguf();
  writer.remove("llama.block_count").number<uint64_t>("llama.block_count", GgufValueType::kUint64, 7);
  writer.remove("llama.rope.freq_base").number<double>("llama.rope.freq_base", GgufValueType::kFloat64, 1e6);
  writer.remove("llama.attention.head_count").number<int16_t>("llama.attention.head_count", GgufValueType::kInt16, 2);
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.num_layers, 7);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope.theta, 1e6);
}

TEST(GgufConfig, HeadsMayBeOfTheirOwnWidthAndRotateInPart) {
  GgufWriter writer = checkpoint::small_gguf();
  writer.u32("llama.attention.key_length", 16).u32("llama.rope.dimension_count", 4).u32("llama.vocab_size", 9);
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope.rotary_dim, 4);
  EXPECT_EQ(config.vocab_size, 9);
}

TEST(GgufConfig, AnOutputMatrixAndBiasesAreSeenByTheirTensors) {
  GgufWriter writer = checkpoint::small_gguf();
  writer.tensor("output.weight", {32, 4}, 0, std::string(512, 'x'));
  writer.tensor("blk.0.attn_q.bias", {8}, 0, std::string(32, 'x'));
  writer.tensor("blk.0.ffn_up.bias", {8}, 0, std::string(32, 'x'));
  const ModelConfig config = expect_config(writer);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.attention_bias);
  EXPECT_TRUE(config.attention_output_bias);
  EXPECT_TRUE(config.mlp_bias);
}

TEST(GgufConfig, EveryIdThatEndsAnAnswerIsReadUnlessTheVocabularyHasItNot) {
  GgufWriter writer = checkpoint::small_gguf();
  writer.u32("tokenizer.ggml.eot_token_id", 3).u32("tokenizer.ggml.eom_token_id", 4);
  EXPECT_THAT(expect_config(writer).eos_ids, ElementsAre(1, 3));
}

TEST(GgufConfig, ALinearScalingHasTwoSpellingsAndAFactorOfNothingIsNone) {
  GgufWriter present = checkpoint::small_gguf();
  present.string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4);
  GgufWriter older = checkpoint::small_gguf();
  older.f32("llama.rope.scale_linear", 4);
  for (const GgufWriter* writer : {&present, &older}) {
    const ModelConfig config = expect_config(*writer);
    EXPECT_EQ(config.rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(config.rope.factor, 4.0);
    EXPECT_EQ(config.max_position, 512) << "with what the scaling adds";
  }
  GgufWriter none = checkpoint::small_gguf();
  none.string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 0);
  EXPECT_EQ(expect_config(none).rope.scaling, RopeScaling::kNone);
}

TEST(GgufConfig, YarnsNumbersAreRead) {
  GgufWriter writer = checkpoint::small_gguf();
  writer.string("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4);
  writer.u32("llama.rope.scaling.original_context_length", 64).f32("llama.rope.scaling.attn_factor", 2);
  writer.f32("llama.rope.scaling.yarn_beta_fast", 16).f32("llama.rope.scaling.yarn_beta_slow", 2);
  const RopeConfig rope = expect_config(writer).rope;
  EXPECT_EQ(rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(rope.original_max_position, 64);
  EXPECT_EQ(rope.beta_fast, 16.0);
  EXPECT_EQ(rope.beta_slow, 2.0);
  EXPECT_TRUE(rope.truncate);
  // 2 times the usual 0.1 ln 4 + 1.
  EXPECT_NEAR(rope.attention_factor.value(), 2.277258872, 1e-8);
}

TEST(GgufConfig, OfMixtralHasItsExperts) {
  GgufWriter writer = checkpoint::small_gguf();
  writer.u32("llama.expert_count", 8);
  const ModelConfig plain = expect_config(writer);
  EXPECT_EQ(plain.architecture, "MixtralForCausalLM");
  EXPECT_EQ(plain.moe.num_experts, 8);
  EXPECT_EQ(plain.moe.experts_per_token, 2);
  EXPECT_EQ(plain.moe.intermediate_size, 64);
  EXPECT_TRUE(plain.moe.normalise);
  EXPECT_TRUE(plain.rope.interleaved);
  EXPECT_EQ(expect_config(writer.u32("llama.expert_used_count", 3)).moe.experts_per_token, 3);
}

TEST(GgufConfig, OfQwensAndOlmoHasHeadsAsTheyWere) {
  for (const char* name : {"qwen2", "qwen3", "olmo2", "gemma2"}) {
    EXPECT_FALSE(expect_config(small_model(name)).rope.interleaved) << name;
  }
  EXPECT_TRUE(expect_config(small_model("qwen2")).attention_bias);
  EXPECT_FALSE(expect_config(small_model("qwen2")).attention_output_bias);
  EXPECT_FALSE(expect_config(small_model("qwen3")).attention_bias);
  EXPECT_TRUE(expect_config(small_model("glm4")).rope.interleaved) << "Hugging Face's are neighbours, too";
}

TEST(GgufConfig, OfQwensExpertsKnowsWhoseWeightsSumToOne) {
  GgufWriter writer = small_model("qwen2moe");
  const ModelConfig shared = expect_config(writer.u32("qwen2moe.expert_shared_feed_forward_length", 96));
  EXPECT_EQ(shared.moe.num_experts, 4);
  EXPECT_EQ(shared.moe.intermediate_size, 48);
  EXPECT_EQ(shared.moe.shared_intermediate_size, 96);
  EXPECT_TRUE(shared.moe.shared_gate);
  EXPECT_FALSE(shared.moe.normalise);
  const ModelConfig plain = expect_config(small_model("qwen3moe"));
  EXPECT_EQ(plain.moe.shared_intermediate_size, 0);
  EXPECT_TRUE(plain.moe.normalise);
  EXPECT_THAT(plain.moe.sparse_layers, ElementsAre(true, true));
}

TEST(GgufConfig, OfGraniteHasItsMultipliers) {
  GgufWriter writer = small_model("granite");
  writer.f32("granite.attention.scale", 0.5f).f32("granite.embedding_scale", 12.0f);
  writer.f32("granite.residual_scale", 0.25f).f32("granite.logit_scale", 8.0f);
  const ModelConfig config = expect_config(writer);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_EQ(config.attention_scale, 0.5);
  EXPECT_EQ(config.embedding_scale, 12.0);
  EXPECT_EQ(config.residual_scale, 0.25);
  EXPECT_EQ(config.logits_scale, 0.125);
}

TEST(GgufConfig, OfPhi3HasTheFactorsThatAreTensorsThere) {
  GgufWriter writer = small_model("phi3");
  writer.u32("phi3.rope.scaling.original_context_length", 64).f32("phi3.rope.scaling.attn_factor", 1.25f);
  writer.u32("phi3.attention.sliding_window", 0);
  writer.tensor("rope_factors_long.weight", {4}, 0, checkpoint::bytes_of<float>({1, 2, 3, 4}));
  writer.tensor("rope_factors_short.weight", {4}, 0, checkpoint::bytes_of<float>({1, 1, 1, 1.5f}));
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLongRope);
  EXPECT_THAT(config.rope.long_factors, ElementsAre(1.0, 2.0, 3.0, 4.0));
  EXPECT_THAT(config.rope.short_factors, ElementsAre(1.0, 1.0, 1.0, 1.5));
  EXPECT_EQ(config.rope.attention_factor, 1.25);
  EXPECT_EQ(config.rope.original_max_position, 64);
  EXPECT_EQ(config.rope.factor, 2.0) << "by the lengths";
  EXPECT_THAT(config.layer_windows, IsEmpty()) << "0 is none";
}

TEST(GgufConfig, OfGemma2HasWindowsOnEveryOtherLayerAndItsCaps) {
  const ModelConfig plain = expect_config(small_model("gemma2"));
  EXPECT_THAT(plain.layer_windows, ElementsAre(4096, 0));
  EXPECT_EQ(plain.attention_soft_cap, 50.0);
  EXPECT_EQ(plain.logits_soft_cap, 30.0);
  EXPECT_EQ(plain.norm_weight_offset, 0.0) << "the converter adds the 1";
  EXPECT_EQ(plain.activation, Activation::kGeluTanh);
  GgufWriter writer = small_model("gemma2");
  writer.u32("gemma2.attention.sliding_window", 0).f32("gemma2.final_logit_softcapping", 20);
  EXPECT_THAT(expect_config(writer).layer_windows, ElementsAre(0, 0));
  EXPECT_EQ(expect_config(writer).logits_soft_cap, 20.0);
}

TEST(GgufConfig, OfTheLargestGemmasScalesScoresByTheHiddenSize) {
  for (const auto& [name, layers] : {std::pair<std::string, uint32_t>{"gemma2", 46}, {"gemma3", 62}}) {
    GgufWriter writer = small_model(name);
    writer.u32(name + ".attention.key_length", 16);
    EXPECT_EQ(expect_config(writer).attention_scale, 0.25) << name;
    writer.remove(name + ".block_count").u32(name + ".block_count", layers);
    EXPECT_EQ(expect_config(writer).attention_scale, 1 / std::sqrt(8.0)) << name;
  }
}

TEST(GgufConfig, OfGemma3HasARopeForEachTypeOfLayer) {
  GgufWriter writer = small_model("gemma3");
  writer.u32("gemma3.attention.key_length", 16).u32("gemma3.attention.sliding_window", 512);
  writer.f32("gemma3.rope.freq_base", 1e6f).f32("gemma3.rope.scaling.factor", 8);
  writer.f32("gemma3.rope.freq_base_swa", 5000).u32("gemma3.attention.sliding_window_pattern", 2);
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.norm_weight_offset, 0.0);
  EXPECT_EQ(config.num_kv_heads, 4) << "absent means as many as heads";
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config.max_position, 128) << "counts what the scaling adds";
  EXPECT_EQ(config.window_rope->theta, 5000.0);
  EXPECT_EQ(config.window_rope->scaling, RopeScaling::kNone);
  EXPECT_THAT(config.layer_windows, ElementsAre(512, 0));
}

TEST(GgufConfig, OfGemma4HasNumbersOfEachLayer) {
  const auto writer = [](std::initializer_list<uint32_t> kv_heads, std::initializer_list<uint32_t> sizes) {
    GgufWriter out = small_model("gemma4");
    out.remove("gemma4.feed_forward_length").remove("gemma4.block_count").u32("gemma4.block_count", 3);
    out.numbers("gemma4.attention.head_count_kv", GgufValueType::kUint32, kv_heads);
    out.numbers("gemma4.feed_forward_length", GgufValueType::kUint32, sizes);
    out.u32("gemma4.attention.key_length", 32).u32("gemma4.attention.key_length_swa", 16);
    out.u32("gemma4.attention.sliding_window", 64).u32("gemma4.attention.sliding_window_pattern", 2);
    return out.u32("gemma4.attention.shared_kv_layers", 1);
  };
  const ModelConfig config = expect_config(writer({2, 1, 2}, {64, 64, 128}));
  EXPECT_THAT(config.layer_windows, ElementsAre(64, 0, 64));
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.intermediate_size, 64);
  EXPECT_EQ(config.rope.rotary_dim, 32);
  EXPECT_EQ(config.window_rope->rotary_dim, 16);
  const auto& gemma = std::get<Gemma4Config>(config.family);
  EXPECT_EQ(gemma.full_head_dim, 32);
  EXPECT_EQ(gemma.full_kv_heads, 1);
  EXPECT_EQ(gemma.num_sharing_layers, 1);
  EXPECT_TRUE(gemma.wide_sharing_mlp);
  EXPECT_TRUE(gemma.keys_are_values) << "there is no v_proj";
  EXPECT_EQ(gemma.layer_input_size, 0);
  EXPECT_THAT(read_gguf(writer({2, 1, 1}, {64, 64, 128})).status().message(), HasSubstr("layers of one kind"));
  EXPECT_THAT(read_gguf(writer({2, 1, 2}, {64, 96, 128})).status().message(), HasSubstr("is 96 for layer 1"));
  EXPECT_THAT(read_gguf(writer({2, 1}, {64, 64, 128})).status().message(), HasSubstr("2 entries"));
  EXPECT_THAT(read_gguf(writer({1, 3, 1}, {64, 64, 128})).status().message(), HasSubstr("no multiple"));
}

TEST(GgufConfig, OfLfm2HasStatesWhereThereAreNoHeadsOfKeys) {
  const auto writer = [](const std::string& name, std::initializer_list<uint32_t> kv_heads) {
    GgufWriter out = small_model(name);
    out.remove(name + ".block_count").u32(name + ".block_count", 3);
    out.numbers(name + ".attention.head_count_kv", GgufValueType::kUint32, kv_heads);
    return out.u32(name + ".shortconv.l_cache", 3);
  };
  const ModelConfig config = expect_config(writer("lfm2", {0, 2, 0}));
  EXPECT_EQ(config.architecture, "Lfm2ForCausalLM");
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_THAT(config.recurrent_layers, ElementsAre(true, false, true));
  EXPECT_EQ(std::get<ShortConvConfig>(config.family).kernel, 3);
  EXPECT_FALSE(std::get<ShortConvConfig>(config.family).bias);
  EXPECT_THAT(expect_config(writer("lfm2", {2, 2, 2})).recurrent_layers, IsEmpty());
  EXPECT_THAT(read_gguf(writer("lfm2", {0, 2, 1})).status().message(),
              HasSubstr("\"lfm2.attention.head_count_kv\" has 2 and 1; supported: one number, and 0"));
  EXPECT_THAT(read_gguf(writer("lfm2", {0, 3, 0})).status().message(), HasSubstr("is not a multiple of"));
  EXPECT_THAT(read_gguf(writer("lfm2", {0, 2, 0}).boolean("lfm2.attention.causal", false)).status().message(),
              HasSubstr("\"lfm2.attention.causal\" is false"));

  GgufWriter sparse = writer("lfm2moe", {0, 2, 0});
  sparse.u32("lfm2moe.expert_count", 4).u32("lfm2moe.expert_used_count", 2);
  sparse.u32("lfm2moe.expert_feed_forward_length", 48).u32("lfm2moe.leading_dense_block_count", 1);
  const ModelConfig mixture = expect_config(sparse);
  EXPECT_EQ(mixture.architecture, "Lfm2MoeForCausalLM");
  EXPECT_THAT(mixture.moe.sparse_layers, ElementsAre(false, true, true));
  EXPECT_TRUE(mixture.moe.normalise);
  EXPECT_FALSE(mixture.moe.correction_bias) << "there is no such tensor";
  EXPECT_THAT(read_gguf(sparse.u32("lfm2moe.expert_gating_func", 1)).status().message(),
              HasSubstr("\"lfm2moe.expert_gating_func\" is 1; supported: 2 (sigmoid)"));
}

TEST(GgufConfig, OfGemma3HasNoWindowThatIsMadeUp) {
  EXPECT_THAT(expect_config(small_model("gemma3")).layer_windows, ElementsAre(0, 0));
}

TEST(GgufConfig, OfGemma3MayListItsWindows) {
  GgufWriter writer = small_model("gemma3");
  writer.u32("gemma3.attention.sliding_window", 512);
  GgufWriter longer = writer;
  writer.numbers<uint8_t>("gemma3.attention.sliding_window_pattern", GgufValueType::kBool, {0, 1});
  EXPECT_THAT(expect_config(writer).layer_windows, ElementsAre(0, 512));
  longer.numbers<uint8_t>("gemma3.attention.sliding_window_pattern", GgufValueType::kBool, {0, 1, 1});
  EXPECT_THAT(read_gguf(longer).status().message(),
              HasSubstr("\"gemma3.attention.sliding_window_pattern\" has 3 entries, expected one for each of the 2"));
}

TEST(GgufConfig, OfOlmo2WithAWindowIsAnOlmo3) {
  GgufWriter writer = small_model("olmo2");
  writer.string("olmo2.rope.scaling.type", "yarn").f32("olmo2.rope.scaling.factor", 8.0f);
  EXPECT_EQ(expect_config(writer).architecture, "Olmo2ForCausalLM");
  const ModelConfig config = expect_config(writer.u32("olmo2.attention.sliding_window", 16));
  EXPECT_EQ(config.architecture, "Olmo3ForCausalLM");
  EXPECT_THAT(config.layer_windows, ElementsAre(16, 16));  // every fourth has none
  EXPECT_EQ(config.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.window_rope->scaling, RopeScaling::kNone);
}

TEST(GgufConfig, LayersWithoutPositionsAreThoseOfTheFamily) {
  EXPECT_THAT(expect_config(small_model("smollm3")).unrotated_layers, ElementsAre(false, false));
  EXPECT_THAT(expect_config(small_model("exaone4")).unrotated_layers, IsEmpty());
  GgufWriter hybrid = small_model("exaone4");
  hybrid.u32("exaone4.attention.sliding_window", 16).u32("exaone4.attention.sliding_window_pattern", 2);
  EXPECT_THAT(expect_config(hybrid).unrotated_layers, ElementsAre(false, true));
}

TEST(GgufConfig, OfCohere2HasPositionsWhereItHasWindows) {
  EXPECT_THAT(read_gguf(small_model("cohere2")).status().message(), HasSubstr("attention.sliding_window"));
  GgufWriter writer = small_model("cohere2");
  writer.u32("cohere2.attention.sliding_window", 16).f32("cohere2.logit_scale", 0.25f);
  EXPECT_THAT(expect_config(writer).unrotated_layers, ElementsAre(false, false));  // every fourth has none
  EXPECT_EQ(expect_config(writer).logits_scale, 0.25);
  EXPECT_EQ(expect_config(writer).norm_eps, 0.25);
  writer.u32("cohere2.attention.sliding_window_pattern", 2);
  EXPECT_THAT(expect_config(writer).unrotated_layers, ElementsAre(false, true));
}

TEST(GgufConfig, OfStableLmHasBlocksSideBySideWhereThereIsNoNormBetweenThem) {
  GgufWriter writer = small_model("stablelm");
  EXPECT_TRUE(expect_config(writer).parallel_blocks);
  writer.tensor("blk.0.ffn_norm.weight", {32}, 0, std::string(128, 'x'));
  EXPECT_FALSE(expect_config(writer).parallel_blocks);
  writer.tensor("blk.0.attn_q_norm.weight", {8, 4}, 0, std::string(128, 'x'));
  EXPECT_TRUE(expect_config(writer).norms_heads);
}

GgufWriter llama4(uint32_t num_experts, uint32_t experts_per_token) {
  GgufWriter writer;
  writer.string("general.architecture", "llama4");
  writer.u32("llama4.block_count", 5).u32("llama4.context_length", 1 << 20).u32("llama4.embedding_length", 32);
  writer.u32("llama4.feed_forward_length", 64).u32("llama4.attention.head_count", 4).u32("llama4.vocab_size", 4);
  writer.f32("llama4.attention.layer_norm_rms_epsilon", 0.25f).u32("llama4.interleave_moe_layer_step", 2);
  writer.u32("llama4.expert_count", num_experts).u32("llama4.expert_used_count", experts_per_token);
  writer.u32("llama4.expert_feed_forward_length", 48);
  return writer;
}

TEST(GgufConfig, OfLlama4HasChunksAndScaledQueriesThatNoKeySays) {
  const ModelConfig config = expect_config(llama4(16, 1));
  EXPECT_EQ(config.max_position, 8192);
  EXPECT_THAT(config.unrotated_layers, ElementsAre(false, false, false, true, false));
  EXPECT_THAT(config.moe.sparse_layers, ElementsAre(false, true, false, true, false));
  EXPECT_EQ(config.moe.shared_intermediate_size, 48);
  EXPECT_EQ(config.intermediate_size, 64);
  EXPECT_TRUE(config.norms_heads);
  EXPECT_EQ(config.query_growth.strength, 0.1);
  EXPECT_FALSE(expect_config(llama4(128, 1)).norms_heads);
  EXPECT_THAT(read_gguf(llama4(16, 2)).status().message(), HasSubstr("llama4.expert_used_count"));
  GgufWriter whole = llama4(16, 1);
  EXPECT_THAT(read_gguf(whole.u32("llama4.attention.sliding_window", 0)).status().message(),
              HasSubstr("llama4.attention.sliding_window"));
}

TEST(GgufConfig, OfMistralThreeSaysWhetherQueriesGrow) {
  GgufWriter writer = small_model("mistral3");
  EXPECT_EQ(expect_config(writer).query_growth.strength, 0);
  writer.f32("mistral3.attention.temperature_scale", 0.5f);
  EXPECT_THAT(read_gguf(writer).status().message(), HasSubstr("mistral3.rope.scaling.original_context_length"));
  writer.string("mistral3.rope.scaling.type", "yarn").f32("mistral3.rope.scaling.factor", 2.0f);
  writer.u32("mistral3.rope.scaling.original_context_length", 64);
  EXPECT_EQ(expect_config(writer).query_growth.strength, 0.5);
  EXPECT_EQ(expect_config(writer).query_growth.period, 64);
  EXPECT_TRUE(expect_config(writer).rope.interleaved);
}

TEST(GgufConfig, OfApertusHasTheNumbersOfEachLayersActivation) {
  GgufWriter writer = small_model("apertus");
  writer.numbers<float>("xielu.alpha_p", GgufValueType::kFloat32, {0.5f, 0.25f});
  writer.numbers<float>("xielu.beta", GgufValueType::kFloat32, {0.5f, 0.5f}).f32("xielu.eps", -1e-6f);
  EXPECT_THAT(read_gguf(writer).status().message(), HasSubstr("xielu.alpha_n"));
  GgufWriter few = writer;
  EXPECT_THAT(read_gguf(few.numbers<float>("xielu.alpha_n", GgufValueType::kFloat32, {1.0f})).status().message(),
              HasSubstr("xielu.alpha_n"));
  GgufWriter infinite = writer;
  EXPECT_THAT(
      read_gguf(infinite.numbers<float>("xielu.alpha_n", GgufValueType::kFloat32, {1.0f, INFINITY})).status().message(),
      HasSubstr("xielu.alpha_n"));
  writer.numbers<float>("xielu.alpha_n", GgufValueType::kFloat32, {1.0f, 2.0f});
  const ModelConfig config = expect_config(writer);
  const auto& numbers = std::get<ApertusConfig>(config.family).numbers;
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_EQ(numbers[1].alpha_p, 0.25);
  EXPECT_EQ(numbers[1].alpha_n, 2.0);
}

TEST(GgufConfig, OfFalconHasTwoNormsBeforeTheBlocksWhereThereIsASecond) {
  GgufWriter writer = small_model("falcon");
  writer.u32("falcon.attention.head_count_kv", 1);
  EXPECT_TRUE(expect_config(writer).parallel_blocks);
  EXPECT_FALSE(expect_config(writer).own_mlp_norm);
  EXPECT_FALSE(expect_config(writer).grouped_qkv);
  writer.tensor("blk.0.attn_norm_2.weight", {32}, 0, std::string(128, 'x'));
  EXPECT_TRUE(expect_config(writer).own_mlp_norm);
}

TEST(GgufConfig, OfGptNeoxSaysWhetherBlocksStandSideBySide) {
  GgufWriter writer = small_model("gptneox");
  EXPECT_TRUE(expect_config(writer).parallel_blocks);
  EXPECT_TRUE(expect_config(writer).tie_word_embeddings);
  writer.boolean("gptneox.use_parallel_residual", false);
  EXPECT_FALSE(expect_config(writer).parallel_blocks);
  EXPECT_THAT(read_gguf(writer.u32("gptneox.attention.head_count_kv", 2)).status().message(),
              HasSubstr("heads of keys"));
}

TEST(GgufConfig, OfHunYuanMoeHasASharedExpert) {
  GgufWriter writer = small_model("hunyuan-moe");
  writer.u32("hunyuan-moe.expert_count", 4).u32("hunyuan-moe.expert_used_count", 2);
  writer.u32("hunyuan-moe.expert_feed_forward_length", 48);
  EXPECT_THAT(read_gguf(writer).status().message(), HasSubstr("expert_shared_feed_forward_length"));
  writer.u32("hunyuan-moe.expert_shared_feed_forward_length", 40);
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.moe.shared_intermediate_size, 40);
  EXPECT_TRUE(config.moe.normalise);
}

TEST(GgufConfig, OfGlm4MoeCountsLayersOfFurtherTokensByThemselves) {
  GgufWriter writer = small_model("glm4moe");
  writer.u32("glm4moe.expert_count", 4).u32("glm4moe.expert_used_count", 2);
  writer.u32("glm4moe.expert_feed_forward_length", 48).u32("glm4moe.expert_shared_count", 1);
  writer.u32("glm4moe.nextn_predict_layers", 1);
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.num_next_layers, 1);
  EXPECT_THAT(config.moe.sparse_layers, ElementsAre(false));
  EXPECT_EQ(config.moe.score, RouterScore::kSigmoid);
}

TEST(GgufConfig, OfErnie45sMixturesHasSharedExpertsOfTheOthersSize) {
  GgufWriter writer = small_model("ernie4_5-moe");
  writer.u32("ernie4_5-moe.expert_count", 4).u32("ernie4_5-moe.expert_used_count", 2);
  writer.u32("ernie4_5-moe.expert_feed_forward_length", 48).u32("ernie4_5-moe.expert_shared_count", 2);
  writer.u32("ernie4_5-moe.leading_dense_block_count", 1).u32("ernie4_5-moe.interleave_moe_layer_step", 1);
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.moe.shared_intermediate_size, 96);
  EXPECT_TRUE(config.moe.correction_bias);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_THAT(config.moe.sparse_layers, ElementsAre(false, true));
}

TEST(GgufConfig, OfGpt2HasMatricesThatAreNotTransposedAnyMore) {
  const ModelConfig config = expect_config(small_model("gpt2"));
  EXPECT_FALSE(std::get<Gpt2Config>(config.family).transposed_weights);
  EXPECT_EQ(config.hidden_size, 32);
  EXPECT_EQ(config.norm_eps, 0.25);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.rope.rotary_dim, 0);
}

TEST(GgufConfig, OfGptOssDoesNotRoundYarnsRange) {
  GgufWriter writer = small_model("gpt-oss");
  writer.string("gpt-oss.rope.scaling.type", "yarn").f32("gpt-oss.rope.scaling.factor", 4);
  const ModelConfig config = expect_config(writer);
  EXPECT_FALSE(config.rope.truncate);
  EXPECT_THAT(config.layer_windows, ElementsAre(16, 0));
  EXPECT_EQ(config.moe.score, RouterScore::kSoftmaxOfChosen);
  EXPECT_EQ(config.moe.clamp_limit, 7.0);
}

TEST(GgufConfig, OfDeepseekV2HasLatentAttention) {
  GgufWriter writer = small_model("deepseek2");
  writer.u32("deepseek2.leading_dense_block_count", 1).f32("deepseek2.expert_weights_scale", 16);
  writer.u32("deepseek2.expert_group_count", 2).u32("deepseek2.expert_group_used_count", 1);
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.architecture, "DeepseekV2ForCausalLM");
  EXPECT_EQ(config.latent.query_rank, 0);
  EXPECT_EQ(config.latent.kv_rank, 32);
  EXPECT_EQ(config.latent.nope_head_dim, 16);
  EXPECT_EQ(config.latent.rope_head_dim, 8);
  EXPECT_EQ(config.latent.value_head_dim, 16);
  EXPECT_EQ(config.head_dim, 40);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.attention_scale, 1 / std::sqrt(24.0));
  EXPECT_EQ(config.rope.rotary_dim, 8);
  EXPECT_EQ(config.moe.shared_intermediate_size, 96);
  EXPECT_EQ(config.moe.scale, 16.0);
  EXPECT_EQ(config.moe.num_groups, 2);
  EXPECT_THAT(config.moe.sparse_layers, ElementsAre(false, true));
  EXPECT_THAT(read_gguf(writer.boolean("deepseek2.expert_weights_norm", 1)).status().message(),
              HasSubstr("\"deepseek2.expert_weights_norm\" is true"));
}

TEST(GgufConfig, OfDeepseekV3CountsLayersOfFurtherTokensByThemselves) {
  GgufWriter writer = small_model("deepseek2");
  writer.u32("deepseek2.expert_gating_func", 2);
  EXPECT_EQ(expect_config(writer).num_layers, 2);
  writer.u32("deepseek2.nextn_predict_layers", 1);
  const ModelConfig config = expect_config(writer);
  EXPECT_EQ(config.architecture, "DeepseekV3ForCausalLM");
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.num_next_layers, 1);
  EXPECT_EQ(config.moe.score, RouterScore::kSigmoid);
}

TEST(GgufConfig, ARotaryPartOutsideTheHeadIsRefusedWithBoth) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& [key, rotary] :
       {std::pair{kLeast, kMost}, std::pair{kMost, kLeast}, std::pair<int64_t, int64_t>{8, 16}}) {
    GgufWriter writer = small_model("deepseek2");
    writer.remove("deepseek2.attention.key_length").remove("deepseek2.rope.dimension_count");
    writer.number("deepseek2.attention.key_length", GgufValueType::kInt64, key);
    writer.number("deepseek2.rope.dimension_count", GgufValueType::kInt64, rotary);
    const Status refused = read_gguf(writer).status();
    EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
    EXPECT_THAT(refused.message(), HasSubstr("deepseek2.rope.dimension_count"));
    EXPECT_THAT(refused.message(), HasSubstr(std::to_string(key)));
  }
}

struct Refusal {
  const char* expected;
  StatusCode code;
  std::function<void(GgufWriter&)> change;  // of small_gguf()
};

const Refusal kRefusals[] = {
    {"metadata \"llama.block_count\" is missing, expected an integer", StatusCode::kDataLoss,
     [](GgufWriter& w) { w.remove("llama.block_count"); }},
    {"metadata \"llama.attention.layer_norm_rms_epsilon\" is missing, expected a number", StatusCode::kDataLoss,
     [](GgufWriter& w) { w.remove("llama.attention.layer_norm_rms_epsilon"); }},
    {"\"llama.attention.head_count\": found float32, expected an integer", StatusCode::kDataLoss,
     [](GgufWriter& w) { w.remove("llama.attention.head_count").f32("llama.attention.head_count", 4); }},
    {"found array of 2 uint32, expected an integer", StatusCode::kDataLoss,
     [](GgufWriter& w) {
       w.remove("llama.attention.head_count");
       w.numbers<uint32_t>("llama.attention.head_count", GgufValueType::kUint32, {4, 4});
     }},
    {"found string, expected a number", StatusCode::kDataLoss,
     [](GgufWriter& w) {
       w.remove("llama.attention.layer_norm_rms_epsilon").string("llama.attention.layer_norm_rms_epsilon", "x");
     }},
    {"the number is too large", StatusCode::kDataLoss,
     [](GgufWriter& w) {
       w.remove("llama.context_length").number("llama.context_length", GgufValueType::kUint64, ~uint64_t{0});
     }},
    {"metadata \"llama.attention.head_count\" is 0, expected an integer from 1 to 4096", StatusCode::kInvalidArgument,
     [](GgufWriter& w) { w.remove("llama.attention.head_count").u32("llama.attention.head_count", 0); }},
    {"metadata \"llama.block_count\" is 1000000000, expected an integer from 1 to 4096", StatusCode::kInvalidArgument,
     [](GgufWriter& w) { w.remove("llama.block_count").u32("llama.block_count", 1'000'000'000); }},
    {"metadata \"llama.rope.freq_base\" is nan, expected a finite number", StatusCode::kInvalidArgument,
     [](GgufWriter& w) { w.remove("llama.rope.freq_base").f32("llama.rope.freq_base", NAN); }},
    {"\"llama.attention.head_count\" 4 is not a multiple of \"llama.attention.head_count_kv\" 3",
     StatusCode::kInvalidArgument,
     [](GgufWriter& w) { w.remove("llama.attention.head_count_kv").u32("llama.attention.head_count_kv", 3); }},
    {"metadata: the size of a head is 7, expected an even number from 2 to 1024", StatusCode::kInvalidArgument,
     [](GgufWriter& w) { w.u32("llama.attention.key_length", 7); }},
    {"metadata \"llama.rope.dimension_count\" is 10, expected an integer from 1 to 8", StatusCode::kInvalidArgument,
     [](GgufWriter& w) { w.u32("llama.rope.dimension_count", 10); }},
    {"yarn_ext_factor\" is 0.5, which is not supported yet; supported: 1", StatusCode::kUnimplemented,
     [](GgufWriter& w) {
       w.string("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.yarn_ext_factor", 0.5f);
     }},
    {"rope type \"spiral\" is not supported yet", StatusCode::kUnimplemented,
     [](GgufWriter& w) { w.string("llama.rope.scaling.type", "spiral"); }},
    {"metadata \"llama.rope.scaling.factor\" is missing, expected a number", StatusCode::kDataLoss,
     [](GgufWriter& w) { w.string("llama.rope.scaling.type", "llama3"); }},
    {"metadata \"llama.expert_used_count\" is 9, expected an integer from 1 to 8", StatusCode::kInvalidArgument,
     [](GgufWriter& w) { w.u32("llama.expert_count", 8).u32("llama.expert_used_count", 9); }},
    {"the architecture \"falcon9\" is not supported yet", StatusCode::kUnimplemented,
     [](GgufWriter& w) { w.remove("general.architecture").string("general.architecture", "falcon9"); }},
    {"the architecture \"OPTForCausalLM\" is not read from GGUF files yet", StatusCode::kUnimplemented,
     [](GgufWriter& w) { w.remove("general.architecture").string("general.architecture", "OPTForCausalLM"); }},
};

TEST(GgufConfig, WhatCannotBeIsRefusedByItsKey) {
  for (const Refusal& refusal : kRefusals) {
    GgufWriter writer = checkpoint::small_gguf();
    refusal.change(writer);
    const auto config = read_gguf(writer);
    ASSERT_FALSE(config.ok()) << refusal.expected;
    EXPECT_EQ(config.status().code(), refusal.code) << refusal.expected;
    EXPECT_THAT(config.status().message(), HasSubstr(refusal.expected));
  }
  GgufWriter capped = small_model("gemma3");
  EXPECT_THAT(read_gguf(capped.f32("gemma3.attn_logit_softcapping", 50)).status().message(),
              HasSubstr("\"gemma3.attn_logit_softcapping\" is set"));
}

}  // namespace
}  // namespace quire::models
