// What the families with recurrent layers read out of configurations, and what they refuse by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "models/registry.h"
#include "tests/models/small_config.h"

namespace quire::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RecurrentFamilies, BambasLayersAreMambasButThoseWithAttention) {
  constexpr std::string_view kBamba = "BambaForCausalLM";
  boost::json::object config = small(kBamba);
  config["mamba_n_heads"] = 8;
  const auto refusal = [&config](std::string_view key, boost::json::value value) {
    boost::json::object changed = config;
    changed[key] = std::move(value);
    return std::string(read(changed).status().message());
  };
  const auto all = read(config);
  ASSERT_TRUE(all.ok()) << all.status().message();
  EXPECT_THAT(all->recurrent_layers, ElementsAre(true, true, true, true));
  EXPECT_EQ(all->rope.rotary_dim, 8) << "half of a head";
  const auto& sizes = std::get<Mamba2Config>(all->family);
  EXPECT_EQ(sizes.head_dim, 16) << "twice the hidden size over 8 heads";
  EXPECT_EQ(sizes.state_size, 256);
  EXPECT_TRUE(sizes.conv_bias);
  config["attn_layer_indices"] = {1};
  config["partial_rotary_factor"] = 1;
  EXPECT_THAT(read(config)->recurrent_layers, ElementsAre(true, false, true, true));
  EXPECT_EQ(read(config)->rope.rotary_dim, 8) << "a share beside the rope's parameters is not the reference's";
  config["rope_parameters"] = boost::json::object{{"rope_theta", 1e4}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(read(config)->rope.rotary_dim, 4);
  EXPECT_THAT(refusal("attn_layer_indices", {1, 4}),
              HasSubstr("attn_layer_indices has 4, expected integers from 0 to 3"));
  EXPECT_THAT(refusal("hidden_act", "gelu"), HasSubstr("hidden_act of layers of Mamba; supported: silu"));
  EXPECT_THAT(refusal("mamba_d_head", 5), HasSubstr("8 heads of 5 (mamba_n_heads, mamba_d_head)"));
  EXPECT_THAT(refusal("time_step_limit", {1, 0}), HasSubstr("time_step_limit is [1,0]"));
  EXPECT_TRUE(read_with(kBamba, "attn_layer_indices", {0, 1, 2, 3})->recurrent_layers.empty());
}

TEST(RecurrentFamilies, FalconH1sLayersHaveBothAStateAndAttention) {
  boost::json::object config = small("FalconH1ForCausalLM");
  config["mamba_n_heads"] = 8;
  const auto refusal = [&config](std::string_view key, boost::json::value value) {
    boost::json::object changed = config;
    changed[key] = std::move(value);
    return std::string(read(changed).status().message());
  };
  const auto model = read(config);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_THAT(model->recurrent_layers, ElementsAre(true, true, true, true));
  EXPECT_THAT(model->attention_layers, ElementsAre(true, true, true, true));
  const auto& sizes = std::get<FalconH1Config>(model->family).mamba;
  EXPECT_EQ(sizes.head_dim, 128) << "1024 numbers where the configuration does not say how many";
  EXPECT_EQ(sizes.norm, MambaNorm::kNone);
  EXPECT_THAT(sizes.multipliers, ElementsAre(1, 1, 1, 1, 1));

  config["mamba_d_ssm"] = nullptr;
  config["mamba_rms_norm"] = true;
  config["key_multiplier"] = 0.5;
  config["embedding_multiplier"] = 3;
  config["lm_head_multiplier"] = 0.25;
  config["ssm_multipliers"] = {1, 2, 3, 4, 5};
  config["mlp_multipliers"] = {0.5, 0.75};
  config["projectors_bias"] = true;
  const auto scaled = read(config);
  ASSERT_TRUE(scaled.ok()) << scaled.status().message();
  const auto& own = std::get<FalconH1Config>(scaled->family);
  EXPECT_EQ(own.mamba.head_dim, 16) << "twice the hidden size over 8 heads";
  EXPECT_EQ(own.mamba.norm, MambaNorm::kBeforeGate);
  EXPECT_TRUE(own.mamba.output_bias);
  EXPECT_FALSE(own.mamba.projection_bias);
  EXPECT_THAT(own.mamba.multipliers, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(own.mlp_gate, 0.5);
  EXPECT_EQ(own.mlp_output, 0.75);
  EXPECT_EQ(scaled->attention_scale, 0.5 / 4);
  EXPECT_EQ(scaled->embedding_scale, 3);
  EXPECT_EQ(scaled->logits_scale, 0.25);
  EXPECT_THAT(refusal("ssm_multipliers", {1, 2}), HasSubstr("ssm_multipliers has 2 numbers, expected 5"));
  EXPECT_THAT(refusal("mamba_d_ssm", 100), HasSubstr("makes 100 numbers"));
  EXPECT_THAT(refusal("hidden_act", "gelu"), HasSubstr("hidden_act of layers of Mamba; supported: silu"));
}

TEST(RecurrentFamilies, NemotronHsLayersAreOneBlockEach) {
  boost::json::object config = small("NemotronHForCausalLM");
  const auto refusal = [&config](std::string_view key, boost::json::value value) {
    boost::json::object changed = config;
    changed[key] = std::move(value);
    return std::string(read(changed).status().message());
  };
  config["hybrid_override_pattern"] = "M-M*E";
  const auto model = read(config);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->num_layers, 5) << "the pattern's, whatever num_hidden_layers says";
  EXPECT_THAT(model->recurrent_layers, ElementsAre(true, false, true, false, false));
  EXPECT_THAT(model->attention_layers, ElementsAre(false, false, false, true, false));
  EXPECT_THAT(model->unrotated_layers, ElementsAre(true, true, true, true, true));
  EXPECT_THAT(model->moe.sparse_layers, ElementsAre(false, false, false, false, true));
  EXPECT_EQ(model->activation, Activation::kRelu2);
  EXPECT_FALSE(model->moe.gated);
  EXPECT_EQ(model->moe.shared_intermediate_size, 7688);
  const auto& own = std::get<NemotronHConfig>(model->family);
  EXPECT_EQ(own.mamba.num_groups, 8);
  EXPECT_EQ(own.mamba.least_step, 0.001);
  EXPECT_EQ(own.expert_input_size, 0);
  EXPECT_THAT(refusal("hybrid_override_pattern", "MXM"),
              HasSubstr("hybrid_override_pattern has 'X' for layer 1, expected M, *, - or E"));

  config["layers_block_type"] = {"mamba", "attention", "moe"};  // which goes before the pattern
  config["mamba_n_groups"] = 4;
  config["moe_latent_size"] = 16;
  const auto listed = read(config);
  ASSERT_TRUE(listed.ok()) << listed.status().message();
  EXPECT_THAT(listed->recurrent_layers, ElementsAre(true, false, false));
  EXPECT_EQ(std::get<NemotronHConfig>(listed->family).mamba.num_groups, 4);
  EXPECT_EQ(std::get<NemotronHConfig>(listed->family).expert_input_size, 16);
  EXPECT_THAT(refusal("layers_block_type", {"mamba", "conv"}),
              HasSubstr("layers_block_type has \"conv\" for layer 1, expected \"linear_attention\""));
  EXPECT_THAT(refusal("attention_bias", true), HasSubstr("attention_bias is true, which the reference ignores"));
  EXPECT_THAT(refusal("tie_word_embeddings", true), HasSubstr("tie_word_embeddings is true"));
  EXPECT_THAT(refusal("sliding_window", 8), HasSubstr("sliding_window is 8"));
  EXPECT_THAT(refusal("time_step_limit", {0.1, 1}),
              HasSubstr("time_step_limit is [1E-1,1], which the reference ignores"));
  EXPECT_THAT(refusal("mamba_hidden_act", "gelu"), HasSubstr("mamba_hidden_act is gelu; supported: silu"));
  EXPECT_THAT(refusal("n_shared_experts", 2), HasSubstr("n_shared_experts is 2; supported: 1"));
  EXPECT_THAT(refusal("mamba_num_heads", 6), HasSubstr("mamba_num_heads is 6, expected a multiple of the 4 groups"));
  EXPECT_TRUE(read_with("NemotronHForCausalLM", "hybrid_override_pattern", "*-")->recurrent_layers.empty());
}

TEST(RecurrentFamilies, OlmoHybridsAttentionRotatesWhereThereIsABaseFrequency) {
  constexpr std::string_view kOlmo = "OlmoHybridForCausalLM";
  const auto model = read(small(kOlmo));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_THAT(model->recurrent_layers, ElementsAre(true, true, true, false));
  EXPECT_TRUE(model->unrotated_layers.empty());
  const auto& sizes = std::get<DeltaNetConfig>(model->family);
  EXPECT_EQ(sizes.num_key_heads, 4);
  EXPECT_EQ(sizes.key_head_dim, 12) << "three quarters of the hidden size over the heads";
  EXPECT_EQ(sizes.value_head_dim, 24);
  EXPECT_EQ(sizes.most_update, 2);
  EXPECT_EQ(std::get<DeltaNetConfig>(read_with(kOlmo, "linear_allow_neg_eigval", false)->family).most_update, 1);
  EXPECT_EQ(std::get<DeltaNetConfig>(read_with(kOlmo, "linear_key_head_dim", 20)->family).value_head_dim, 40);
  EXPECT_EQ(read_with(kOlmo, "rope_theta", nullptr)->unrotated_layers.size(), 4u);
  const boost::json::object none{{"rope_type", "default"}, {"rope_theta", nullptr}};
  EXPECT_EQ(read_with(kOlmo, "rope_parameters", none)->unrotated_layers.size(), 4u);
  const boost::json::object some{{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_EQ(read_with(kOlmo, "rope_parameters", some)->rope.theta, 5e5);
  EXPECT_THAT(read_with(kOlmo, "num_hidden_layers", 2)->recurrent_layers, ElementsAre(true, false));
  boost::json::object many = small(kOlmo);
  many["linear_num_key_heads"] = many["linear_num_value_heads"] = 64;
  EXPECT_THAT(read(many).status().message(), HasSubstr("linear_key_head_dim is 0, three quarters of hidden_size"));
  EXPECT_THAT(read_with(kOlmo, "linear_num_value_heads", 8).status().message(),
              HasSubstr("linear_num_value_heads=8 and linear_num_key_heads=4; supported: as many of both"));
  EXPECT_THAT(read_with(kOlmo, "hidden_act", "gelu").status().message(), HasSubstr("hidden_act of layers with linear"));
}

TEST(RecurrentFamilies, Lfm2sRecurrentLayersAreThoseOfItsTypesOrAllButThoseWithAttention) {
  const auto typed = read_with("Lfm2ForCausalLM", "layer_types", {"conv", "full_attention", "conv", "conv"});
  ASSERT_TRUE(typed.ok()) << typed.status().message();
  EXPECT_THAT(typed->recurrent_layers, ElementsAre(true, false, true, true));
  EXPECT_TRUE(typed->tie_word_embeddings);
  EXPECT_EQ(std::get<ShortConvConfig>(typed->family).kernel, 3);
  EXPECT_THAT(read_with("Lfm2ForCausalLM", "full_attn_idxs", {1, 3})->recurrent_layers,
              ElementsAre(true, false, true, false));
  EXPECT_TRUE(read(small("Lfm2ForCausalLM"))->recurrent_layers.empty());
  EXPECT_FALSE(read_with("Lfm2ForCausalLM", "tie_embedding", false)->tie_word_embeddings);

  const auto refusal = [](std::string_view key, boost::json::value value) {
    return std::string(read_with("Lfm2ForCausalLM", key, std::move(value)).status().message());
  };
  EXPECT_THAT(refusal("layer_types", {"conv", "conv", "conv"}), HasSubstr("a list of 4 names"));
  EXPECT_THAT(refusal("layer_types", {"conv", "conv", "conv", "sliding_attention"}),
              HasSubstr("has \"sliding_attention\" for layer 3, expected \"conv\" or \"full_attention\""));
  EXPECT_THAT(refusal("full_attn_idxs", {4, 1}), HasSubstr("full_attn_idxs has 4, expected integers from 0 to 3"));
  EXPECT_THAT(refusal("conv_L_cache", 9), HasSubstr("conv_L_cache is 9, expected an integer from 2 to 8"));
  EXPECT_THAT(refusal("attention_bias", true), HasSubstr("attention_bias"));
  EXPECT_THAT(refusal("block_ffn_dim_multiplier", 0), HasSubstr("block_ffn_dim_multiplier 0 of 85 is 0"));
}

TEST(RecurrentFamilies, Lfm2sFeedForwardBlocksAreOfTheAdjustedSize) {
  boost::json::object config = small("Lfm2ForCausalLM");
  EXPECT_EQ(read(config)->intermediate_size, 256) << "2/3 of 128, rounded up";
  config["block_multiple_of"] = 32;
  EXPECT_EQ(read(config)->intermediate_size, 96);
  config["block_ffn_dim_multiplier"] = 1.5;
  EXPECT_EQ(read(config)->intermediate_size, 128);
  config["block_ffn_dim_multiplier"] = nullptr;
  EXPECT_EQ(read(config)->intermediate_size, 85);
  config["block_ff_dim"] = 12;
  EXPECT_EQ(read(config)->intermediate_size, 8) << "the older name goes before the other";
  config["block_auto_adjust_ff_dim"] = false;
  EXPECT_EQ(read(config)->intermediate_size, 12);
}

TEST(RecurrentFamilies, Lfm2MoeHasExpertsBehindItsFirstLayers) {
  boost::json::object config = small("Lfm2MoeForCausalLM");
  config["layer_types"] = {"conv", "full_attention", "conv", "conv"};
  const auto read_config = read(config);
  ASSERT_TRUE(read_config.ok()) << read_config.status().message();
  EXPECT_EQ(read_config->intermediate_size, 128);
  EXPECT_EQ(read_config->moe.num_experts, 32);
  EXPECT_EQ(read_config->moe.intermediate_size, 1792);
  EXPECT_THAT(read_config->moe.sparse_layers, ElementsAre(false, false, true, true));
  EXPECT_EQ(read_config->moe.score, RouterScore::kSigmoid);
  EXPECT_TRUE(read_config->moe.correction_bias);
  EXPECT_TRUE(read_config->moe.normalise);
  config["use_expert_bias"] = false;
  EXPECT_FALSE(read(config)->moe.correction_bias);
}

}  // namespace
}  // namespace quire::models
