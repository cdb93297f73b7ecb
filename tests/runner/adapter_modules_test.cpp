// Names of modules in adapters beside those of checkpoints.
#include "runner/adapter_modules.h"

#include <gtest/gtest.h>

#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

nn::AdaptableLayers layers_of(const std::vector<std::string>& modules) {
  nn::AdaptableLayers layers;
  for (const std::string& module : modules) {
    layers.push_back(std::make_shared<const nn::AdaptableLayer>(
        nn::AdaptableLayer{.parts = {{.module = module, .size = 8, .stored = module}}}));
  }
  return layers;
}

// Releases of a library call the text model of one that sees images by different names.
TEST(AdapterModules, TextModelsAreFoundUnderEitherName) {
  const std::string rest = "layers.3.self_attn.q_proj";
  const std::string roots[] = {"model.language_model.", "language_model.model.", "model."};
  for (const std::string& stored : roots) {
    for (const std::string& given : roots) {
      const nn::AdaptableLayers layers = layers_of({stored + rest, stored + "layers.4.self_attn.q_proj"});
      ModuleNames names(layers);
      const ModulePlace* place = names.find(given + rest);
      ASSERT_NE(place, nullptr) << stored << " by " << given;
      EXPECT_EQ(place->layer->parts[0].module, stored + rest);
      EXPECT_EQ(names.find(given + "layers.5.self_attn.q_proj"), nullptr);
      // Expressions of the adapter's configuration are held against its own spelling.
      const std::string full =
          names.full_name(stored + "layers.4.self_attn.q_proj", nn::AdaptableLayer::Kind::kProduct);
      if (stored != "language_model.model." || given != stored) {
        EXPECT_EQ(full, given + "layers.4.self_attn.q_proj");
      }
    }
  }
}

TEST(AdapterModules, MultipliersAreInTheWeightsOfBothOrOfNeither) {
  const auto checkpoint = checkpoint::Checkpoint::open(tiny_path("../tiny_gguf/falcon_h1.gguf")).value();
  const ModelConfig config{.architecture = "FalconH1ForCausalLM"};
  checkpoint::AdapterFile of_peft;
  of_peft.peft.emplace();
  const checkpoint::AdapterFile of_gguf;
  EXPECT_TRUE(check_multipliers(of_peft, config, nullptr).ok());
  EXPECT_TRUE(check_multipliers(of_gguf, config, checkpoint.get()).ok());
  EXPECT_EQ(check_multipliers(of_peft, config, checkpoint.get()).code(), StatusCode::kUnimplemented);
  EXPECT_EQ(check_multipliers(of_gguf, config, nullptr).code(), StatusCode::kUnimplemented);
  EXPECT_TRUE(check_multipliers(of_peft, {.architecture = "LlamaForCausalLM"}, checkpoint.get()).ok());
}

TEST(AdapterModules, EncodersOfImagesAreBesideTheText) {
  for (const char* module : {"model.vision_tower.encoder.layers.0.q_proj", "visual.blocks.1.attn.qkv",
                             "model.visual.blocks.1.attn.qkv", "multi_modal_projector.linear_1"}) {
    EXPECT_TRUE(is_beside_text(module)) << module;
  }
  for (const char* module : {"model.layers.0.self_attn.q_proj", "lm_head", "model.language_model.embed_tokens"})
    EXPECT_FALSE(is_beside_text(module)) << module;
}

}  // namespace
}  // namespace quire::runner
