// What families made of the common decoder read out of configurations, and what they refuse by name: HunYuan, Llama 4,
// Falcon, GPT-NeoX and their like.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "tests/models/small_config.h"

namespace quire::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

void expect_refusal(const boost::json::object& config, StatusCode code, const std::string& name) {
  const Status status = read(config).status();
  EXPECT_EQ(status.code(), code) << name << ": " << status.message();
  EXPECT_THAT(status.message(), HasSubstr(name));
}

TEST(LaterFamilies, NormsOfHeadsAreAChoiceOfCommandRAndStableLm) {
  EXPECT_FALSE(read(small("CohereForCausalLM"))->norms_heads);
  EXPECT_TRUE(read_with("CohereForCausalLM", "use_qk_norm", true)->norms_heads);
  EXPECT_FALSE(read(small("StableLmForCausalLM"))->norms_heads);
  EXPECT_TRUE(read_with("StableLmForCausalLM", "qk_layernorm", true)->norms_heads);
}

TEST(LaterFamilies, HunYuanStretchesTheBaseByAlpha) {
  boost::json::object config = small("HunYuanDenseV1ForCausalLM");
  config["rope_scaling"] = {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}};
  const ModelConfig read_config = read(config).value();
  EXPECT_EQ(read_config.rope.scaling, RopeScaling::kNone);
  EXPECT_NEAR(read_config.rope.theta, 1e4 * std::pow(1000.0, 16.0 / 14), 1);
  config["rope_scaling"] = {{"type", "dynamic"}, {"alpha", nullptr}, {"factor", 2.0}};
  EXPECT_EQ(read(config)->rope.scaling, RopeScaling::kDynamic);
  EXPECT_EQ(read(config)->rope.theta, 1e4);
  for (const double alpha : {-1.0, 1e300}) {
    config["rope_scaling"] = {{"type", "dynamic"}, {"alpha", alpha}, {"factor", 1.0}};
    EXPECT_EQ(read(config).status().code(), StatusCode::kInvalidArgument) << alpha;
  }
  config["rope_scaling"] = {{"type", "dynamic"}, {"alpha", "many"}, {"factor", 1.0}};
  expect_refusal(config, StatusCode::kInvalidArgument, "alpha");
}

TEST(LaterFamilies, HunYuansListsHaveOneNumberForAllLayers) {
  boost::json::object config = small("HunYuanMoEV1ForCausalLM");
  config["num_experts"] = 8;
  config["moe_topk"] = {2, 2, 2, 2};
  config["moe_intermediate_size"] = {128, 128, 128, 128};
  config["num_shared_expert"] = {1, 1, 1, 1};
  const ModelConfig read_config = read(config).value();
  EXPECT_EQ(read_config.moe.experts_per_token, 2);
  EXPECT_EQ(read_config.moe.shared_intermediate_size, 128);
  EXPECT_TRUE(read_config.moe.normalise);
  config["moe_topk"] = {2, 1, 2, 2};
  expect_refusal(config, StatusCode::kUnimplemented, "moe_topk");
  config["moe_topk"] = boost::json::array();
  expect_refusal(config, StatusCode::kInvalidArgument, "moe_topk");
  for (const double wrong : {0.0, 1.5, 9.0, 1e300}) {
    config["moe_topk"] = {wrong, wrong};
    EXPECT_EQ(read(config).status().code(), StatusCode::kInvalidArgument) << wrong;
  }
  config["moe_topk"] = 2;
  config["moe_intermediate_size"] = {64, 64, 64, 64};
  expect_refusal(config, StatusCode::kUnimplemented, "moe_intermediate_size");
  config.erase("moe_intermediate_size");
  config["num_shared_expert"] = 2;
  expect_refusal(config, StatusCode::kUnimplemented, "num_shared_expert");
  for (const auto& [key, value] : {std::pair("use_cla", true), {"use_qk_norm", false}, {"mlp_bias", true}}) {
    const Status status = read_with("HunYuanDenseV1ForCausalLM", key, value).status();
    EXPECT_THAT(status.message(), HasSubstr(key));
  }
}

TEST(LaterFamilies, Llama4sContextIsAChunkWhereLayersHaveChunks) {
  boost::json::object config = small("Llama4ForCausalLM");
  config["max_position_embeddings"] = 1 << 20;
  EXPECT_EQ(read(config)->max_position, 8192);
  config["attention_chunk_size"] = 512;
  EXPECT_EQ(read(config)->max_position, 512);
  config["attention_chunk_size"] = nullptr;
  EXPECT_EQ(read(config)->max_position, 1 << 20);
  config["layer_types"] = {"chunked_attention", "full_attention", "full_attention", "full_attention"};
  expect_refusal(config, StatusCode::kInvalidArgument, "attention_chunk_size");
  config["attention_chunk_size"] = 512;
  EXPECT_EQ(read(config)->max_position, 512);
  config["layer_types"] = {"full_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(read(config)->max_position, 1 << 20);
  config["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  expect_refusal(config, StatusCode::kUnimplemented, "sliding_attention");
  config["layer_types"] = {"full_attention"};
  expect_refusal(config, StatusCode::kInvalidArgument, "layer_types");
}

TEST(LaterFamilies, Llama4ReadsWhichLayersRotateAndWhichAreSparse) {
  boost::json::object config = small("Llama4ForCausalLM");
  EXPECT_THAT(read(config)->unrotated_layers, ElementsAre(false, false, false, true));
  EXPECT_THAT(read(config)->moe.sparse_layers, ElementsAre(true, true, true, true));
  EXPECT_EQ(read(config)->intermediate_size, 16384);
  EXPECT_EQ(read(config)->query_growth.strength, 0.1);
  config["no_rope_layers"] = boost::json::array();
  config["no_rope_layer_interval"] = 2;
  EXPECT_THAT(read(config)->unrotated_layers, ElementsAre(false, true, false, true));
  config["no_rope_layers"] = {1, 1, 1, 1};
  config["interleave_moe_layer_step"] = 2;
  EXPECT_THAT(read(config)->unrotated_layers, ElementsAre(false, false, false, false));
  EXPECT_EQ(read(config)->query_growth.strength, 0) << "no layer's queries grow";
  EXPECT_THAT(read(config)->moe.sparse_layers, ElementsAre(false, true, false, true));
  config["moe_layers"] = {0, -1, 1e300, 3};
  EXPECT_THAT(read(config)->moe.sparse_layers, ElementsAre(true, false, false, true));
  boost::json::object guard = config;
  guard["moe_layers"] = boost::json::array();
  for (const char* key : {"num_local_experts", "num_experts_per_tok", "interleave_moe_layer_step"}) guard[key] = 0;
  EXPECT_THAT(read(guard)->moe.sparse_layers, ElementsAre(false, false, false, false));
  config["attn_temperature_tuning"] = 4;  // as the first releases spell true
  config.erase("no_rope_layers");
  EXPECT_EQ(read(config)->query_growth.strength, 0.1);
  config["attn_temperature_tuning"] = false;
  EXPECT_EQ(read(config)->query_growth.strength, 0);
}

TEST(LaterFamilies, Llama4RefusesByName) {
  for (const auto& [key, value] : {std::pair<const char*, boost::json::value>("num_experts_per_tok", 2),
                                   {"floor_scale", 0},
                                   {"floor_scale", 1e300},
                                   {"attn_scale", "much"},
                                   {"attention_chunk_size", -1},
                                   {"interleave_moe_layer_step", 0},
                                   {"no_rope_layers", boost::json::array{1}},
                                   {"moe_layers", 3},
                                   {"attn_temperature_tuning", "yes"},
                                   {"intermediate_size_mlp", 0}}) {
    const Status status = read_with("Llama4ForCausalLM", key, value).status();
    EXPECT_FALSE(status.ok()) << key;
    EXPECT_THAT(status.message(), HasSubstr(key));
  }
  boost::json::object config = small("Llama4ForCausalLM");
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  expect_refusal(config, StatusCode::kUnimplemented, "use_qk_norm");
  config["use_qk_norm"] = false;
  EXPECT_TRUE(read(config).ok());
}

TEST(LaterFamilies, Llama4IsTheTextModelOfALargerOne) {
  boost::json::object whole = {{"architectures", {"Llama4ForConditionalGeneration"}},
                               {"text_config", small("Llama4ForCausalLM")}};
  EXPECT_EQ(read(whole)->hidden_size, 64);
  EXPECT_EQ(read(whole)->architecture, "Llama4ForCausalLM");
}

TEST(LaterFamilies, MinistralThreesQueriesGrowBehindTheTrainedLength) {
  boost::json::object config = small("Ministral3ForCausalLM");
  config["max_position_embeddings"] = 4096;
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1e6},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 256},
                               {"llama_4_scaling_beta", 0.25}};
  const ModelConfig read_config = read(config).value();
  EXPECT_EQ(read_config.max_position, 4096);
  EXPECT_EQ(read_config.query_growth.strength, 0.25);
  EXPECT_EQ(read_config.query_growth.period, 256);
  EXPECT_EQ(read_config.query_growth.shift, 0);
  EXPECT_FALSE(read_config.query_growth.of_unrotated);
  config["rope_parameters"].as_object().erase("original_max_position_embeddings");
  expect_refusal(config, StatusCode::kInvalidArgument, "original_max_position_embeddings");
  config["rope_parameters"].as_object().erase("llama_4_scaling_beta");
  EXPECT_EQ(read(config)->query_growth.strength, 0);
}

TEST(LaterFamilies, MistralFoursQueriesGrowAndItsRoutersAreSoftmaxes) {
  boost::json::object config = small("Mistral4ForCausalLM");
  const ModelConfig silent = read(config).value();
  EXPECT_EQ(silent.latent.kv_rank, 256);
  EXPECT_EQ(silent.latent.nope_head_dim, 64);
  EXPECT_EQ(silent.rope.factor, 128);
  EXPECT_EQ(silent.query_growth.period, 8192);
  EXPECT_EQ(silent.moe.score, RouterScore::kSoftmax);
  EXPECT_FALSE(silent.moe.correction_bias);
  EXPECT_TRUE(silent.moe.normalise);
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1e4},
                               {"factor", 4.0},
                               {"original_max_position_embeddings", 64},
                               {"partial_rotary_factor", 0.5}};
  EXPECT_EQ(read(config)->rope.rotary_dim, 64);
  EXPECT_EQ(read(config)->query_growth.strength, 0);
  config["rope_parameters"].as_object()["partial_rotary_factor"] = 0.25;
  expect_refusal(config, StatusCode::kInvalidArgument, "partial_rotary_factor");
  boost::json::object whole = {{"architectures", {"Mistral3ForConditionalGeneration"}},
                               {"text_config", small("Mistral4ForCausalLM")}};
  whole["text_config"].as_object()["model_type"] = "mistral4";
  EXPECT_EQ(read(whole)->latent.kv_rank, 256);
}

TEST(LaterFamilies, TrinitysLayersWithoutAWindowSeeNoPositions) {
  boost::json::object config = small("AfmoeForCausalLM");
  const ModelConfig silent = read(config).value();
  EXPECT_THAT(silent.layer_windows, ElementsAre(1024, 1024, 1024, 0));
  EXPECT_THAT(silent.unrotated_layers, ElementsAre(false, false, false, true));
  EXPECT_THAT(silent.moe.sparse_layers, ElementsAre(false, true, true, true));
  EXPECT_EQ(silent.moe.shared_intermediate_size, 2 * 1408);
  EXPECT_EQ(silent.embedding_scale, 1);
  config["mup_enabled"] = true;
  config["global_attn_every_n_layers"] = 2;
  config["sliding_window"] = 16;
  EXPECT_EQ(read(config)->embedding_scale, 8);
  EXPECT_THAT(read(config)->layer_windows, ElementsAre(16, 0, 16, 0));
  for (const auto& [key, value] : {std::pair<const char*, boost::json::value>("route_norm", false),
                                   {"score_func", "softmax"},
                                   {"sliding_window", nullptr},
                                   {"global_attn_every_n_layers", 0}}) {
    EXPECT_THAT(read_with("AfmoeForCausalLM", key, value).status().message(), HasSubstr(key));
  }
}

TEST(LaterFamilies, ApertusHasAnActivationOfItsOwnUnlessItNamesAnother) {
  EXPECT_TRUE(std::get<ApertusConfig>(read(small("ApertusForCausalLM"))->family).is_xielu);
  EXPECT_EQ(read(small("ApertusForCausalLM"))->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(read(small("ApertusForCausalLM"))->rope.theta, 1.2e7);
  const auto other = read_with("ApertusForCausalLM", "hidden_act", "silu");
  EXPECT_FALSE(std::get<ApertusConfig>(other->family).is_xielu);
  EXPECT_EQ(other->activation, Activation::kSilu);
  EXPECT_THAT(read_with("ApertusForCausalLM", "hidden_act", "laplace").status().message(), HasSubstr("laplace"));
}

boost::json::object falcon() {
  boost::json::object config = small("FalconForCausalLM");
  for (const char* key : {"intermediate_size", "num_key_value_heads", "head_dim"}) config.erase(key);
  return config;
}

TEST(LaterFamilies, FalconsHeadsOfKeysDependOnItsGeneration) {
  boost::json::object config = falcon();
  EXPECT_EQ(read(config)->num_kv_heads, 1);
  EXPECT_EQ(read(config)->intermediate_size, 256);
  EXPECT_TRUE(read(config)->parallel_blocks);
  EXPECT_FALSE(read(config)->own_mlp_norm);
  EXPECT_TRUE(read(config)->tie_word_embeddings);
  config["num_kv_heads"] = 2;
  EXPECT_EQ(read(config)->num_kv_heads, 1) << "one all the same";
  config["multi_query"] = false;
  expect_refusal(config, StatusCode::kUnimplemented, "num_kv_heads");
  config["num_kv_heads"] = nullptr;
  EXPECT_EQ(read(config)->num_kv_heads, 4);
  config["num_kv_heads"] = 2;
  config["new_decoder_architecture"] = true;
  EXPECT_EQ(read(config)->num_kv_heads, 2);
  EXPECT_TRUE(read(config)->own_mlp_norm);
  config["num_ln_in_parallel_attn"] = 1;
  EXPECT_FALSE(read(config)->own_mlp_norm);
  config["num_kv_heads"] = 3;
  expect_refusal(config, StatusCode::kInvalidArgument, "num_key_value_heads");
}

TEST(LaterFamilies, FalconReadsItsFirstSpellingsAndRefusesByName) {
  boost::json::object config = falcon();
  config["n_head"] = 8;
  config["num_attention_heads"] = nullptr;
  EXPECT_EQ(read(config)->num_heads, 8);
  config["n_head"] = 5;
  expect_refusal(config, StatusCode::kInvalidArgument, "heads");
  for (const auto& [key, value] : {std::pair<const char*, boost::json::value>("alibi", true),
                                   {"num_ln_in_parallel_attn", 2},
                                   {"num_ln_in_parallel_attn", 3},
                                   {"ffn_hidden_size", 0},
                                   {"ffn_hidden_size", 1e300},
                                   {"activation", "laplace"}}) {
    boost::json::object other = falcon();
    other[key] = value;
    const Status status = read(other).status();
    EXPECT_FALSE(status.ok()) << key;
    EXPECT_THAT(status.message(), HasSubstr(boost::json::serialize(value) == "\"laplace\"" ? "laplace" : key));
  }
  boost::json::object serial = falcon();
  serial["parallel_attn"] = false;
  EXPECT_FALSE(read(serial)->parallel_blocks);
  serial["new_decoder_architecture"] = true;
  expect_refusal(serial, StatusCode::kUnimplemented, "parallel_attn");
}

TEST(LaterFamilies, GptNeoxReadsItsOlderSpellings) {
  boost::json::object config = small("GPTNeoXForCausalLM");
  EXPECT_EQ(read(config)->rope.rotary_dim, 4);
  EXPECT_EQ(read(config)->num_kv_heads, 4) << "the class knows no heads of keys";
  EXPECT_TRUE(read(config)->attention_bias);
  EXPECT_TRUE(read(config)->parallel_blocks);
  config["rotary_pct"] = 0.5;
  config["rotary_emb_base"] = 5000;
  EXPECT_EQ(read(config)->rope.rotary_dim, 8);
  EXPECT_EQ(read(config)->rope.theta, 5000);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 700.0}, {"partial_rotary_factor", 1.0}};
  EXPECT_EQ(read(config)->rope.rotary_dim, 16);
  EXPECT_EQ(read(config)->rope.theta, 700);
  config["num_attention_heads"] = 3;
  EXPECT_FALSE(read(config).ok());
}

TEST(LaterFamilies, GptBigCodeHasOneHeadOfKeysUnlessItSaysOtherwise) {
  boost::json::object config = {
      {"architectures", {"GPTBigCodeForCausalLM"}}, {"n_embd", 64}, {"n_layer", 2}, {"n_head", 4}};
  EXPECT_EQ(read(config)->num_kv_heads, 1);
  EXPECT_EQ(read(config)->activation, Activation::kGeluTanh);
  config["multi_query"] = false;
  EXPECT_EQ(read(config)->num_kv_heads, 4);
  config["add_cross_attention"] = true;
  expect_refusal(config, StatusCode::kUnimplemented, "add_cross_attention");
}

TEST(LaterFamilies, OlmosCutOffIsRead) {
  for (const char* architecture : {"OlmoForCausalLM", "OlmoeForCausalLM"}) {
    EXPECT_EQ(read(small(architecture))->qkv_limit, 0);
    EXPECT_EQ(read_with(architecture, "clip_qkv", nullptr)->qkv_limit, 0);
    EXPECT_EQ(read_with(architecture, "clip_qkv", 8.0)->qkv_limit, 8);
    EXPECT_THAT(read_with(architecture, "clip_qkv", 0).status().message(), HasSubstr("clip_qkv"));
    EXPECT_THAT(read_with(architecture, "clip_qkv", "x").status().message(), HasSubstr("clip_qkv"));
  }
  EXPECT_EQ(read_with("OlmoForCausalLM", "rms_norm_eps", 0.5)->norm_eps, 1e-5) << "whatever the file says";
}

TEST(LaterFamilies, CwmsLayersHaveWindowsAndItsRopeIsLlama3sWhereNothingIsSaid) {
  boost::json::object config = small("CwmForCausalLM");
  EXPECT_THAT(read(config)->layer_windows, ElementsAre(0, 8192, 8192, 8192));
  EXPECT_EQ(read(config)->rope.scaling, RopeScaling::kLlama3);
  config["rope_theta"] = 1e5;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  config["sliding_window"] = 16;
  config["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_EQ(read(config)->rope.scaling, RopeScaling::kLinear);
  EXPECT_THAT(read(config)->layer_windows, ElementsAre(16, 0, 0, 0));
}

TEST(LaterFamilies, NormsAndBiasesAreThoseOfTheClass) {
  EXPECT_EQ(read(small("NemotronForCausalLM"))->norm_weight_offset, 1);
  EXPECT_EQ(read(small("NemotronForCausalLM"))->activation, Activation::kRelu2);
  EXPECT_EQ(read(small("NemotronForCausalLM"))->rope.rotary_dim, 8);
  EXPECT_EQ(read(small("ArceeForCausalLM"))->activation, Activation::kRelu2);
  EXPECT_TRUE(read(small("HeliumForCausalLM"))->rope.interleaved);
  EXPECT_THAT(read_with("HeliumForCausalLM", "head_dim", 32).status().message(), HasSubstr("hidden_size"));
  EXPECT_TRUE(read_with("InternLM3ForCausalLM", "qkv_bias", true)->attention_bias);
  EXPECT_FALSE(read_with("InternLM3ForCausalLM", "qkv_bias", true)->attention_output_bias);
  EXPECT_TRUE(read_with("InternLM3ForCausalLM", "bias", true)->mlp_bias);
}

}  // namespace
}  // namespace quire::models
