// What the families read out of configurations, and what they refuse by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "models/registry.h"
#include "tests/models/small_config.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Families, AreAllInTheTableOfTheDocumentation) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/../../docs/models.md");
  ASSERT_TRUE(file.is_open());
  std::stringstream text;
  text << file.rdbuf();
  for (const std::string& name : supported_architectures()) {
    EXPECT_THAT(text.str(), HasSubstr("`" + name + "`")) << "docs/models.md has no line for it";
  }
}

TEST(Families, AnUnknownOneIsRefusedWithThoseThatThereAre) {
  const Status status = find_family(small("MambaForCausalLM")).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("MambaForCausalLM"));
  EXPECT_THAT(status.message(), HasSubstr("LlamaForCausalLM"));
}

TEST(Families, AnUnknownActivationIsRefusedByName) {
  const Status status = read_with("LlamaForCausalLM", "hidden_act", "laplace").status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("laplace"));
}

TEST(Families, TyingTheEmbeddingsHasADefaultOfEachFamilysOwn) {
  EXPECT_FALSE(read(small("LlamaForCausalLM"))->tie_word_embeddings);
  EXPECT_FALSE(read(small("Qwen3ForCausalLM"))->tie_word_embeddings);
  EXPECT_TRUE(read(small("Gemma2ForCausalLM"))->tie_word_embeddings);
  EXPECT_TRUE(read(small("Gemma3ForCausalLM"))->tie_word_embeddings);
}

// As transformers does it, which ties no two tensors that a checkpoint has with different numbers.
TEST(Families, AHeadOfOtherNumbersThanTheEmbeddingsIsNotTied) {
  for (const char* architecture : {"LlamaForCausalLM", "Gemma2ForCausalLM"}) {
    nn::MemoryCheckpoint checkpoint;
    boost::json::object config = small(architecture);
    config["tie_word_embeddings"] = true;
    checkpoint.set_config(config);
    std::vector<uint8_t> table(512 * 64 * 4, 1);
    const Family family = find_family(config).value();
    checkpoint.add("model.embed_tokens.weight", DType::kF32, {512, 64}, table);
    EXPECT_TRUE(read_model_config(family, checkpoint)->tie_word_embeddings);
    checkpoint.add("lm_head.weight", DType::kF32, {512, 64}, table);
    EXPECT_TRUE(read_model_config(family, checkpoint)->tie_word_embeddings);
    for (size_t i = 0; i < table.size(); i += 4) table[i] = 2;
    checkpoint.replace("lm_head.weight", DType::kF32, {512, 64}, table);
    EXPECT_FALSE(read_model_config(family, checkpoint)->tie_word_embeddings);
  }
}

TEST(Families, QwensLayersFromMaxWindowLayersOnHaveAWindowWhereItIsUsed) {
  boost::json::object config = small("Qwen2ForCausalLM");
  config["sliding_window"] = 32;
  config["max_window_layers"] = 3;
  EXPECT_TRUE(read(config)->layer_windows.empty());
  config["use_sliding_window"] = true;
  EXPECT_THAT(read(config)->layer_windows, ElementsAre(0, 0, 0, 32));
  config["layer_types"] = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_THAT(read(config)->layer_windows, ElementsAre(32, 0, 0, 0));
  config["layer_types"] = {"chunked_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_THAT(read(config).status().message(), HasSubstr("chunked_attention"));
}

TEST(Families, Qwen2HasBiasesOnQueriesKeysAndValuesAlone) {
  const auto config = read(small("Qwen2ForCausalLM"));
  ASSERT_TRUE(config.ok());
  EXPECT_TRUE(config->attention_bias);
  EXPECT_FALSE(config->attention_output_bias);
}

TEST(Families, GranitesMultipliersAreRead) {
  boost::json::object config = small("GraniteForCausalLM");
  config["attention_multiplier"] = 0.0625;
  config["embedding_multiplier"] = 12.0;
  config["residual_multiplier"] = 0.22;
  config["logits_scaling"] = 8.0;
  const auto read_config = read(config);
  ASSERT_TRUE(read_config.ok());
  EXPECT_EQ(read_config->attention_scale, 0.0625);
  EXPECT_EQ(read_config->embedding_scale, 12.0);
  EXPECT_EQ(read_config->residual_scale, 0.22);
  EXPECT_EQ(read_config->logits_scale, 0.125);
}

TEST(Families, Gemma2CapsScoresAndLogitsUnlessTheConfigurationSaysNull) {
  const auto silent = read(small("Gemma2ForCausalLM"));
  ASSERT_TRUE(silent.ok());
  EXPECT_EQ(silent->attention_soft_cap, 50.0);
  EXPECT_EQ(silent->logits_soft_cap, 30.0);
  EXPECT_THAT(silent->layer_windows, ElementsAre(4096, 0, 4096, 0));
  EXPECT_EQ(silent->embedding_scale, 8.0);
  EXPECT_EQ(silent->attention_scale, 1.0 / 16);
  EXPECT_EQ(read_with("Gemma2ForCausalLM", "attn_logit_softcapping", nullptr)->attention_soft_cap, 0.0);
  EXPECT_THAT(read_with("Gemma2ForCausalLM", "use_bidirectional_attention", true).status().message(),
              HasSubstr("use_bidirectional_attention"));
}

TEST(Families, Gemma3HasARopeForEachTypeOfLayer) {
  boost::json::object config = small("Gemma3ForCausalLM");
  config["rope_parameters"] = boost::json::parse(R"({
      "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2000000.0},
      "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}})");
  const auto nested = read(config);
  ASSERT_TRUE(nested.ok()) << nested.status().message();
  EXPECT_EQ(nested->rope.theta, 2e6);
  EXPECT_EQ(nested->rope.factor, 8.0);
  EXPECT_EQ(nested->window_rope->theta, 5000.0);
  EXPECT_EQ(nested->window_rope->scaling, RopeScaling::kNone);
}

TEST(Families, Gemma3sOlderSpellingOfItsRopesIsRead) {
  boost::json::object config = small("Gemma3ForCausalLM");
  config["rope_theta"] = 500000.0;
  config["rope_local_base_freq"] = 8000.0;
  config["rope_scaling"] = boost::json::parse(R"({"rope_type": "linear", "factor": 4.0})");
  config["sliding_window_pattern"] = 2;
  config["sliding_window"] = 16;
  const auto older = read(config);
  ASSERT_TRUE(older.ok()) << older.status().message();
  EXPECT_EQ(older->rope.theta, 500000.0);
  EXPECT_EQ(older->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(older->window_rope->theta, 8000.0);
  EXPECT_EQ(older->window_rope->scaling, RopeScaling::kNone);
  EXPECT_THAT(older->layer_windows, ElementsAre(16, 0, 16, 0));
}

TEST(Families, TruncateOfAYarnScalingIsNoKeyOfGemma3s) {
  const boost::json::object yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", false}};
  boost::json::object nested = small("Gemma3ForCausalLM");
  nested["rope_parameters"] = {{"full_attention", yarn}, {"sliding_attention", {{"rope_type", "default"}}}};
  boost::json::object older = small("Gemma3ForCausalLM");
  older["rope_scaling"] = yarn;
  for (const boost::json::object& config : {nested, older}) {
    const auto read_config = read(config);
    ASSERT_TRUE(read_config.ok()) << read_config.status().message();
    EXPECT_EQ(read_config->rope.scaling, RopeScaling::kYarn);
    EXPECT_TRUE(read_config->rope.truncate);
  }
}

TEST(Families, Gemma4sHeadsAreReadInBothSpellings) {
  boost::json::object config = small("Gemma4ForCausalLM");
  config["num_hidden_layers"] = 7;
  config["hidden_size_per_layer_input"] = 0;
  config["attention_k_eq_v"] = true;
  config["global_head_dim"] = 32;
  config["num_global_key_value_heads"] = 1;
  const auto published = read(config);
  ASSERT_TRUE(published.ok()) << published.status().message();
  EXPECT_THAT(published->layer_windows, ElementsAre(512, 512, 512, 512, 512, 0, 0));  // the last has none in any case
  const auto& gemma = std::get<Gemma4Config>(published->family);
  EXPECT_EQ(gemma.full_head_dim, 32);
  EXPECT_EQ(gemma.full_kv_heads, 1);
  EXPECT_TRUE(gemma.keys_are_values);
  EXPECT_EQ(published->head_dim, 16);
  EXPECT_EQ(published->attention_scale, 1);
  EXPECT_EQ(published->rope.scaling, RopeScaling::kProportional);
  EXPECT_EQ(published->rope.rotary_dim, 32);
  EXPECT_EQ(published->rope.turning_share, 0.25);
  EXPECT_EQ(published->window_rope->rotary_dim, 16);

  config.erase("global_head_dim");
  config.erase("num_global_key_value_heads");
  const boost::json::object full{{"head_dim", 32}, {"num_key_value_heads", 1}};
  config["per_layer_config"] = boost::json::object{{"5", full}, {"6", full}};
  const auto newer = read(config);
  ASSERT_TRUE(newer.ok()) << newer.status().message();
  EXPECT_EQ(std::get<Gemma4Config>(newer->family).full_head_dim, 32);
  EXPECT_EQ(std::get<Gemma4Config>(newer->family).full_kv_heads, 1);
  config["per_layer_config"] = boost::json::object{{"5", full}};
  EXPECT_THAT(read(config).status().message(), HasSubstr("1 of the 2 layers without a window"));
  config["per_layer_config"] = boost::json::object{{"0", full}};
  EXPECT_THAT(read(config).status().message(), HasSubstr("\"0\""));
  config["per_layer_config"] = boost::json::object{{"5", full}, {"6", {{"head_dim", 64}}}};
  EXPECT_THAT(read(config).status().message(), HasSubstr("different heads"));
}

TEST(Families, WhatGemma4IsNotIsRefused) {
  const auto refused = [](std::string_view key, boost::json::value value) {
    boost::json::object config = small("Gemma4ForCausalLM");
    config["hidden_size_per_layer_input"] = 0;
    config[key] = std::move(value);
    return std::string(read(config).status().message());
  };
  EXPECT_EQ(refused("use_bidirectional_attention", "vision"), "");
  EXPECT_THAT(refused("use_bidirectional_attention", "all"), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(refused("hidden_size_per_layer_input", 8), HasSubstr("vocab_size_per_layer_input is 262144"));
  // Of four layers the last alone has no window: it has none to share with.
  EXPECT_THAT(refused("num_kv_shared_layers", 2), HasSubstr("before layer 2 there is none of its type"));
  EXPECT_THAT(refused("num_kv_shared_layers", 4), HasSubstr("num_kv_shared_layers"));
  EXPECT_THAT(refused("sliding_window", nullptr), HasSubstr("sliding_window"));
  EXPECT_THAT(refused("final_logit_softcapping", 0), HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(refused("num_global_key_value_heads", 3), "");  // read where keys are values alone
}

TEST(Families, TheTextPartOfALargerGemma3IsRead) {
  boost::json::object whole{{"architectures", {"Gemma3ForConditionalGeneration"}}, {"eos_token_id", {1, 106}}};
  whole["text_config"] = small("ignored");
  const auto config = read(whole);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->hidden_size, 64);
  EXPECT_THAT(config->eos_ids, ElementsAre(1, 106));
}

// As published: what is as in the reference's configuration class is left out.
TEST(Families, ATextPartThatSaysLittleIsTheReferencesGemma3) {
  boost::json::object whole{{"architectures", {"Gemma3ForConditionalGeneration"}}};
  whole["text_config"] = boost::json::parse(R"({"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024,
      "intermediate_size": 10240, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}})");
  const auto config = read(whole);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->vocab_size, 262208);
  EXPECT_EQ(config->num_heads, 8);
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->head_dim, 256);
  EXPECT_EQ(config->hidden_size, 2560);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->rope.factor, 8.0);
}

TEST(Families, FieldsOnWhichImplementationsDifferAreRefusedByName) {
  EXPECT_THAT(read_with("Gemma3ForCausalLM", "attn_logit_softcapping", 50.0).status().message(),
              HasSubstr("attn_logit_softcapping"));
  EXPECT_TRUE(read_with("Gemma3ForCausalLM", "attn_logit_softcapping", nullptr).ok());
  boost::json::object config = small("DeepseekV2ForCausalLM");
  config["num_experts_per_tok"] = 2;
  EXPECT_TRUE(read(config).ok()) << read(config).status().message();
  config["norm_topk_prob"] = true;
  EXPECT_THAT(read(config).status().message(), HasSubstr("norm_topk_prob"));
}

TEST(Families, APartialRotaryEmbeddingIsTakenWhereTheReferenceTakesIt) {
  EXPECT_EQ(read_with("Phi3ForCausalLM", "partial_rotary_factor", 0.5)->rope.rotary_dim, 8);
  EXPECT_THAT(read_with("LlamaForCausalLM", "partial_rotary_factor", 0.5).status().message(),
              HasSubstr("partial_rotary_factor"));
  EXPECT_TRUE(read_with("LlamaForCausalLM", "partial_rotary_factor", 1.0).ok());
}

TEST(Families, ATypeOfLayerIsRefusedAlsoWhereNoWindowIsUsed) {
  boost::json::object config = small("Qwen3ForCausalLM");
  config["layer_types"] = {"linear_attention", "full_attention", "full_attention", "full_attention"};
  EXPECT_THAT(read(config).status().message(), HasSubstr("linear_attention"));
}

TEST(Families, LayersThatPredictFurtherTokensAreCountedWhereTheyMayBe) {
  boost::json::object config = small("DeepseekV3ForCausalLM");
  EXPECT_EQ(read(config)->num_next_layers, 1) << "as the reference ignores it";
  config["num_nextn_predict_layers"] = 2;
  EXPECT_EQ(read(config)->num_next_layers, 2);
  config = small("DeepseekV2ForCausalLM");
  config["num_experts_per_tok"] = 2;
  EXPECT_EQ(read(config)->num_next_layers, 0);
}

TEST(Families, Phi3ReadsLongropeByItsOlderNamesAndTheLengthBesideIt) {
  boost::json::object config = small("Phi3ForCausalLM");
  config["original_max_position_embeddings"] = 64;
  boost::json::object scaling{{"short_factor", boost::json::array(8, 1.5)},
                              {"long_factor", boost::json::array(8, 4.0)}};
  for (const char* type : {"longrope", "su", "yarn"}) {
    scaling["type"] = type;
    config["rope_scaling"] = scaling;
    const auto read_config = read(config);
    ASSERT_TRUE(read_config.ok()) << read_config.status().message();
    EXPECT_EQ(read_config->rope.scaling, RopeScaling::kLongRope);
    EXPECT_EQ(read_config->rope.original_max_position, 64);
    EXPECT_EQ(read_config->rope.factor, 8.0);
    EXPECT_EQ(read_config->rope.long_factors, std::vector<double>(8, 4.0));
  }
  scaling["long_factor"] = boost::json::array(7, 4.0);
  config["rope_scaling"] = scaling;
  EXPECT_THAT(read(config).status().message(), HasSubstr("long_factor"));
}

TEST(Families, GlmRotatesHalfOfEachHeadByNeighbouringPairs) {
  const auto config = read(small("Glm4ForCausalLM"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->rope.rotary_dim, 8);
  EXPECT_TRUE(config->rope.interleaved);
  EXPECT_TRUE(config->attention_bias);
}

TEST(Families, TheTrainedLengthBesideTheRopeParametersWins) {
  boost::json::object config = small("LlamaForCausalLM");
  config["original_max_position_embeddings"] = 100;
  config["rope_parameters"] =
      boost::json::parse(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 50})");
  EXPECT_EQ(read(config)->rope.original_max_position, 100);
  config.erase("original_max_position_embeddings");
  EXPECT_EQ(read(config)->rope.original_max_position, 50);
}

TEST(Families, ADynamicRopeIsAPlainOneWithinTheLengthThatThereIs) {
  const auto config =
      read_with("LlamaForCausalLM", "rope_scaling", boost::json::parse(R"({"rope_type": "dynamic", "factor": 2.0})"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->rope.scaling, RopeScaling::kDynamic);
  EXPECT_EQ(config->max_position, 512);
}

TEST(Families, AScaledRopeLengthensTheContext) {
  const auto context = [](const char* architecture, const char* scaling) {
    const auto config = read_with(architecture, "rope_scaling", boost::json::parse(scaling));
    EXPECT_TRUE(config.ok()) << config.status().message();
    return config.ok() ? config->max_position : 0;
  };
  EXPECT_EQ(
      context("Qwen3ForCausalLM", R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 400})"),
      1600)
      << "the trained length by the factor, as on Qwen3's card";
  EXPECT_EQ(
      context("LlamaForCausalLM", R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100})"),
      512)
      << "what is stated is not taken away";
  EXPECT_EQ(context("LlamaForCausalLM", R"({"rope_type": "yarn", "factor": 2.0})"), 1024);
  EXPECT_EQ(context("LlamaForCausalLM", R"({"rope_type": "linear", "factor": 2.5})"), 1280);
  EXPECT_EQ(context("LlamaForCausalLM", R"({"rope_type": "linear", "factor": 1e300})"), int64_t{1} << 30);
  EXPECT_EQ(context("Gemma3ForCausalLM", R"({"rope_type": "linear", "factor": 8.0})"), 512)
      << "stated with the scaling of the full layers";
  EXPECT_EQ(context("LlamaForCausalLM", R"({"rope_type": "llama3", "factor": 8.0})"), 512);
}

TEST(Families, AnUnknownRopeIsRefusedByName) {
  EXPECT_THAT(
      read_with("LlamaForCausalLM", "rope_scaling", boost::json::parse(R"({"rope_type": "axial"})")).status().message(),
      HasSubstr("axial"));
}

TEST(Families, EveryFourthOfSmolLm3sLayersSeesNoPositionsUnlessAListSaysWhich) {
  EXPECT_THAT(read(small("SmolLM3ForCausalLM"))->unrotated_layers, ElementsAre(false, false, false, true));
  EXPECT_THAT(read_with("SmolLM3ForCausalLM", "no_rope_layer_interval", 2)->unrotated_layers,
              ElementsAre(false, true, false, true));
  boost::json::object config = small("SmolLM3ForCausalLM");
  config["no_rope_layers"] = {0, 1, 1, 0};
  config["sliding_window"] = 16;
  EXPECT_THAT(read(config)->unrotated_layers, ElementsAre(true, false, false, true));
  EXPECT_THAT(read(config)->layer_windows, ElementsAre(0, 0, 0, 0));
  config["use_sliding_window"] = true;
  EXPECT_THAT(read(config)->layer_windows, ElementsAre(16, 0, 0, 16));
  config["no_rope_layers"] = {1, 1};
  EXPECT_THAT(read(config).status().message(), HasSubstr("no_rope_layers has 2 entries"));
}

TEST(Families, Cohere2sLayersWithoutAWindowSeeNoPositions) {
  const auto config = read_with("Cohere2ForCausalLM", "sliding_window", 32);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_THAT(config->layer_windows, ElementsAre(32, 32, 32, 0));
  EXPECT_THAT(config->unrotated_layers, ElementsAre(false, false, false, true));
  EXPECT_TRUE(config->rope.interleaved);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->logits_scale, 0.0625);
  EXPECT_THAT(read_with("Cohere2ForCausalLM", "sliding_window_pattern", 2)->layer_windows,
              ElementsAre(4096, 0, 4096, 0));
  EXPECT_THAT(read_with("Cohere2ForCausalLM", "sliding_window", nullptr).status().message(),
              HasSubstr("sliding_window is null"));
}

TEST(Families, NormsOfHeadsThatAreNotBuiltAreRefusedByName) {
  const Status status = read_with("PhiForCausalLM", "qk_layernorm", true).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("qk_layernorm"));
  EXPECT_TRUE(read_with("PhiForCausalLM", "qk_layernorm", false).ok());
}

TEST(Families, StableLmAndPhiRotateAPartOfEachHeadUnlessTheySayWhich) {
  EXPECT_EQ(read(small("StableLmForCausalLM"))->rope.rotary_dim, 4);
  EXPECT_EQ(read(small("PhiForCausalLM"))->rope.rotary_dim, 8);
  EXPECT_EQ(read_with("PhiForCausalLM", "partial_rotary_factor", 0.25)->rope.rotary_dim, 4);
  EXPECT_FALSE(read(small("StableLmForCausalLM"))->parallel_blocks);
  EXPECT_TRUE(read_with("StableLmForCausalLM", "use_parallel_residual", true)->parallel_blocks);
  EXPECT_THAT(read_with("StableLmForCausalLM", "layer_norm_eps", -1).status().message(),
              HasSubstr("layer_norm_eps is -1"));
}

TEST(Families, Exaone4sLayersWithoutAWindowSeeNoPositionsWhereOthersHaveOne) {
  const auto hybrid = read_with("Exaone4ForCausalLM", "sliding_window_pattern", "LLLG");
  ASSERT_TRUE(hybrid.ok());
  EXPECT_THAT(hybrid->layer_windows, ElementsAre(4096, 4096, 4096, 0));
  EXPECT_THAT(hybrid->unrotated_layers, ElementsAre(false, false, false, true));
  EXPECT_THAT(read_with("Exaone4ForCausalLM", "sliding_window_pattern", "LGLG").status().message(), HasSubstr("LGLG"));
  const auto plain = read_with("Exaone4ForCausalLM", "sliding_window", nullptr);
  ASSERT_TRUE(plain.ok());
  EXPECT_THAT(plain->layer_windows, ElementsAre(0, 0, 0, 0));
  EXPECT_TRUE(plain->unrotated_layers.empty());
}

TEST(Families, Olmo3StretchesTheRopeOfLayersWithoutAWindowAlone) {
  boost::json::object config = small("Olmo3ForCausalLM");
  config["rope_theta"] = 10000.0;
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
  const auto found = read(config);
  ASSERT_TRUE(found.ok());
  EXPECT_THAT(found->layer_windows, ElementsAre(4096, 4096, 4096, 0));
  EXPECT_EQ(found->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(found->window_rope->scaling, RopeScaling::kNone);
  EXPECT_EQ(found->window_rope->theta, 10000.0);
  EXPECT_EQ(found->max_position, 512);
}

TEST(Families, TheFirstGemmasGeluIsItsApproximationUnlessTheNewerKeySaysMore) {
  EXPECT_EQ(read_with("GemmaForCausalLM", "hidden_act", "gelu")->activation, Activation::kGeluTanh);
  EXPECT_EQ(read_with("GemmaForCausalLM", "hidden_act", "relu")->activation, Activation::kRelu);
  EXPECT_EQ(read_with("GemmaForCausalLM", "hidden_activation", "gelu")->activation, Activation::kGelu);
  EXPECT_EQ(read(small("GemmaForCausalLM"))->embedding_scale, 8.0);
  EXPECT_TRUE(read(small("GemmaForCausalLM"))->tie_word_embeddings);
}

TEST(Families, Glm4MoeHasDeepseeksRoutersAndCountsLayersOfFurtherTokensByThemselves) {
  boost::json::object config = small("Glm4MoeForCausalLM");
  config["n_routed_experts"] = 4;
  config["num_experts_per_tok"] = 2;
  config["use_qk_norm"] = true;
  config["num_nextn_predict_layers"] = 3;
  const auto found = read(config);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->moe.score, RouterScore::kSigmoid);
  EXPECT_TRUE(found->moe.normalise);
  EXPECT_THAT(found->moe.sparse_layers, ElementsAre(false, true, true, true));
  EXPECT_EQ(found->moe.shared_intermediate_size, 1408);
  EXPECT_EQ(found->num_next_layers, 3);
  EXPECT_TRUE(found->norms_heads);
  EXPECT_EQ(found->rope.rotary_dim, 8);
}

TEST(Families, Ernie45HasExpertsOnEverySoManyLayersOfARange) {
  boost::json::object config = small("Ernie4_5_MoeForCausalLM");
  config["moe_num_experts"] = 4;
  config["moe_k"] = 2;
  const auto found = read(config);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->moe.score, RouterScore::kSoftmax);
  EXPECT_TRUE(found->moe.correction_bias);
  EXPECT_EQ(found->moe.shared_intermediate_size, 2 * 1536);
  EXPECT_TRUE(found->rope.interleaved);
  EXPECT_THAT(found->moe.sparse_layers, ElementsAre(false, true, true, true));
  config["moe_layer_interval"] = 2;
  EXPECT_THAT(read(config)->moe.sparse_layers, ElementsAre(false, true, false, true));
  config["moe_layer_end_index"] = 2;
  EXPECT_THAT(read(config)->moe.sparse_layers, ElementsAre(false, true, false, false));
  config["moe_k"] = 5;
  EXPECT_THAT(read(config).status().message(), HasSubstr("moe_k"));
}

TEST(Families, MinimaxM2NamesWhatOfAHeadRotates) {
  boost::json::object config = small("MiniMaxM2ForCausalLM");
  config["num_local_experts"] = 16;
  config["head_dim"] = 32;
  config["rotary_dim"] = 8;
  const auto found = read(config);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->rope.rotary_dim, 8);
  EXPECT_EQ(found->rope.theta, 5e6);
  EXPECT_EQ(found->moe.score, RouterScore::kSigmoid);
  EXPECT_EQ(found->moe.experts_per_token, 8);
  EXPECT_TRUE(found->moe.normalise);
  config["rotary_dim"] = 33;
  EXPECT_THAT(read(config).status().message(), HasSubstr("rotary_dim"));
}

TEST(Families, Glm47FlashIsADeepseekV3WhoseSparseLayersAreNamed) {
  boost::json::object config = small("Glm4MoeLiteForCausalLM");
  const auto found = read(config);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->latent.query_rank, 768);
  EXPECT_EQ(found->latent.value_head_dim, 256);
  EXPECT_EQ(found->moe.scale, 1.8);
  EXPECT_EQ(found->num_next_layers, 1);
  EXPECT_THAT(found->moe.sparse_layers, ElementsAre(false, true, true, true));
  config["mlp_layer_types"] = {"sparse", "dense", "sparse", "sparse"};
  EXPECT_THAT(read(config)->moe.sparse_layers, ElementsAre(true, false, true, true));
  config["mlp_layer_types"] = {"sparse", "wide", "sparse", "sparse"};
  EXPECT_THAT(read(config).status().message(), HasSubstr("mlp_layer_types"));
}

TEST(Families, TheTextPartOfALargerMistralIsReadWhereItIsAMistral) {
  boost::json::object config = small("Mistral3ForConditionalGeneration");
  config["text_config"] = small("MistralForCausalLM");
  config["text_config"].as_object()["sliding_window"] = nullptr;
  config["vocab_size"] = 7;
  EXPECT_EQ(read(config)->vocab_size, 512);
  EXPECT_TRUE(read(config)->layer_windows.empty());
  config["text_config"].as_object()["model_type"] = "mixtral";
  EXPECT_THAT(read(config).status().message(), HasSubstr("\"mixtral\""));
}

TEST(Families, Ministral3sRopeIsStretchedWhereTheFileIsSilent) {
  const auto silent = read(small("Ministral3ForCausalLM"));
  ASSERT_TRUE(silent.ok());
  EXPECT_EQ(silent->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(silent->rope.factor, 16.0);
  EXPECT_EQ(silent->query_growth.strength, 0.1);
  EXPECT_EQ(silent->query_growth.period, 16384);
}

TEST(Families, QwensRopesOfPicturesAreThoseOfTextWhereThereIsTextAlone) {
  boost::json::object flat = small("Qwen2_5_VLForConditionalGeneration");
  flat["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {2, 3, 3}}};
  ASSERT_TRUE(read(flat).ok()) << read(flat).status().message();
  EXPECT_EQ(read(flat)->rope.scaling, RopeScaling::kNone);
  boost::json::object nested = small("Qwen3VLForConditionalGeneration");
  nested["text_config"] = small("Qwen3ForCausalLM");
  nested["vocab_size"] = 7;
  nested["tie_word_embeddings"] = true;
  EXPECT_EQ(read(nested)->vocab_size, 512);
  EXPECT_TRUE(read(nested)->tie_word_embeddings);
}

TEST(Families, EncodersSeeBothWaysAndRefuseWhatChangesTheirPositions) {
  const auto bert = read(small("BertModel"));
  ASSERT_TRUE(bert.ok()) << bert.status().message();
  EXPECT_TRUE(bert->attends_both_ways);
  EXPECT_EQ(bert->num_text_types, 2);
  EXPECT_EQ(bert->max_position, 512);
  EXPECT_EQ(bert->activation, Activation::kGelu);
  const auto roberta = read(small("XLMRobertaModel"));
  ASSERT_TRUE(roberta.ok()) << roberta.status().message();
  EXPECT_EQ(roberta->max_position, 510) << "two rows of the table are no text's";
  EXPECT_THAT(read_with("BertModel", "position_embedding_type", "relative_key").status().message(),
              HasSubstr("relative_key"));
  EXPECT_THAT(read_with("BertModel", "is_decoder", true).status().message(), HasSubstr("is_decoder"));
  EXPECT_EQ(read_with("RobertaModel", "pad_token_id", 4)->max_position, 507) << "five rows are no text's";
  EXPECT_THAT(read_with("RobertaModel", "pad_token_id", 600).status().message(), HasSubstr("pad_token_id"));
  EXPECT_THAT(read_with("BertModel", "num_attention_heads", 5).status().message(), HasSubstr("over 5 heads"));
}

TEST(Families, ModernBertHasWindowsBetweenLayersThatSeeAll) {
  boost::json::object config = small("ModernBertModel");
  config["local_attention"] = 8;
  const auto model = read(config);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_THAT(model->layer_windows, ElementsAre(0, 5, 5, 0)) << "four tokens each way, and its own";
  EXPECT_EQ(model->rope.theta, 160000);
  EXPECT_EQ(model->window_rope->theta, 10000);
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_THAT(read(config)->layer_windows, ElementsAre(5, 0, 5, 0));
  EXPECT_THAT(read_with("ModernBertModel", "classifier_activation", "maxout").status().message(), HasSubstr("maxout"));
}

TEST(Families, NomicBertIsReadByItsFirstKeysAndByThoseOfTheReference) {
  const auto later = read_with("NomicBertModel", "hidden_act", "silu");
  ASSERT_TRUE(later.ok()) << later.status().message();
  EXPECT_EQ(later->rope.theta, 1000);
  boost::json::object config{{"architectures", {"NomicBertModel"}},
                             {"vocab_size", 512},
                             {"n_embd", 64},
                             {"n_inner", 96},
                             {"n_head", 4},
                             {"n_layer", 2},
                             {"n_positions", 256},
                             {"rotary_emb_base", 500},
                             {"qkv_proj_bias", false},
                             {"mlp_fc1_bias", false},
                             {"mlp_fc2_bias", false}};
  const auto first = read(config);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->intermediate_size, 96);
  EXPECT_EQ(first->rope.theta, 500);
  EXPECT_FALSE(first->attention_bias);
  // Beyond what it was trained on every key would turn anew with a text's length.
  config["n_positions"] = 8192;
  config["rotary_scaling_factor"] = 2;
  EXPECT_EQ(read(config)->max_position, 2048);
  config["prenorm"] = true;
  EXPECT_THAT(read(config).status().message(), HasSubstr("prenorm"));
}

TEST(Families, Gpt2ReadsItsOwnWordsAndRefusesCrossAttention) {
  boost::json::object config{{"architectures", {"GPT2LMHeadModel"}}, {"n_embd", 64}, {"n_layer", 2}, {"n_head", 4}};
  config["scale_attn_by_inverse_layer_idx"] = true;
  const auto read_config = read(config);
  ASSERT_TRUE(read_config.ok()) << read_config.status().message();
  EXPECT_EQ(read_config->intermediate_size, 256);
  EXPECT_EQ(read_config->vocab_size, 50257);
  EXPECT_TRUE(std::get<Gpt2Config>(read_config->family).scale_by_inverse_layer);
  EXPECT_TRUE(std::get<Gpt2Config>(read_config->family).transposed_weights);
  config["add_cross_attention"] = true;
  EXPECT_THAT(read(config).status().message(), HasSubstr("add_cross_attention"));
}

TEST(Families, OptHasNormsBeforeOrAfterItsBlocks) {
  boost::json::object config{{"architectures", {"OPTForCausalLM"}},
                             {"hidden_size", 64},
                             {"ffn_dim", 128},
                             {"num_hidden_layers", 2},
                             {"num_attention_heads", 4}};
  EXPECT_TRUE(std::get<OptConfig>(read(config)->family).final_norm);
  config["do_layer_norm_before"] = false;
  config["word_embed_proj_dim"] = 32;
  const auto after = read(config);
  ASSERT_TRUE(after.ok());
  const OptConfig& own = std::get<OptConfig>(after->family);
  EXPECT_FALSE(own.norm_before);
  EXPECT_FALSE(own.final_norm);
  EXPECT_EQ(own.embedding_size, 32);
}

}  // namespace
}  // namespace quire::models
