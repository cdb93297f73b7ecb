// quantization_config as files of each camp write it.
#include "checkpoint/quantization_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/directory_files.h"
#include "checkpoint/folder_checkpoint.h"

namespace quire::checkpoint {
namespace {

using ::testing::HasSubstr;

Result<std::optional<QuantizationConfig>> parsed(std::string_view quantization) {
  return QuantizationConfig::parse({{"quantization_config", boost::json::parse(quantization)}});
}

QuantizationConfig read(std::string_view quantization) {
  auto config = parsed(quantization);
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() && *config ? **std::move(config) : QuantizationConfig();
}

TEST(QuantizationConfigs, AreNoneWhereTheConfigurationHasNone) {
  EXPECT_FALSE(QuantizationConfig::parse({}).value().has_value());
  EXPECT_FALSE(QuantizationConfig::parse({{"quantization_config", nullptr}}).value().has_value());
}

TEST(QuantizationConfigs, OfAwqAndGptqHaveBitsGroupsAndVersions) {
  const QuantizationConfig awq =
      read(R"({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "GEMV"})");
  EXPECT_EQ(awq.method, QuantMethod::kAwq);
  EXPECT_TRUE(awq.is_gemv);
  EXPECT_EQ(awq.group_size, 128);
  EXPECT_EQ(describe(awq), "awq, 4 bits");
  const QuantizationConfig older =
      read(R"({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"})");
  EXPECT_EQ(older.bits, 4);
  EXPECT_EQ(older.group_size, 64);
  const QuantizationConfig gptq =
      read(R"({"quant_method": "gptq", "bits": 3, "group_size": -1, "checkpoint_format": "gptq_v2",
               "dynamic": {"-:.*vision.*": {}, "+:.*down_proj": {"bits": 8}}})");
  EXPECT_TRUE(gptq.zeros_are_whole);
  EXPECT_EQ(gptq.group_size, -1);
  ASSERT_EQ(gptq.overrides.size(), 2u);
  EXPECT_TRUE(gptq.overrides[0].skipped);
  EXPECT_EQ(gptq.overrides[1].bits, 8);
  EXPECT_TRUE(gptq.overrides[1].pattern.matches("layers.0.mlp.down_proj").value());
  EXPECT_FALSE(gptq.overrides[1].pattern.matches("layers.0.mlp.up_proj").value());
}

TEST(QuantizationConfigs, OfAutoRoundAreThoseOfWhatItPacks) {
  const QuantizationConfig gptq = read(R"({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": true,
               "packing_format": "auto_round:auto_gptq",
               "extra_config": {"lm_head": {"bits": 16}, "layers.0.mlp.up_proj": {"bits": 8, "group_size": 32}}})");
  EXPECT_EQ(gptq.method, QuantMethod::kGptq);
  ASSERT_EQ(gptq.overrides.size(), 1u);
  EXPECT_EQ(gptq.overrides[0].bits, 8);
  EXPECT_EQ(gptq.overrides[0].group_size, 32);
  EXPECT_EQ(read(R"({"quant_method": "auto-round", "bits": 4, "group_size": 128,
                     "packing_format": "auto_round:auto_awq"})")
                .method,
            QuantMethod::kAwq);
  EXPECT_THAT(parsed(R"({"quant_method": "auto-round", "bits": 4, "group_size": 128, "packing_format": "fp8"})")
                  .status()
                  .message(),
              HasSubstr("quantization_config.packing_format is the string \"fp8\"; supported"));
}

TEST(QuantizationConfigs, OfAutoRoundMayNameModulesByExpressions) {
  const QuantizationConfig config = read(R"({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": true,
      "packing_format": "auto_round:auto_gptq",
      "extra_config": {".*layers\\.[02]\\..*up_proj": {"bits": 8}, "model.layers.0.mlp.up_proj": {"bits": 2}}})");
  ASSERT_EQ(config.overrides.size(), 2u);
  EXPECT_EQ(config.overrides[0].bits, 2) << "a name wins over an expression";
  EXPECT_TRUE(*config.overrides[0].pattern.matches("model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(*config.overrides[1].pattern.matches("model.layers.2.mlp.up_proj"));
  EXPECT_FALSE(*config.overrides[1].pattern.matches("model.layers.1.mlp.up_proj"));
}

TEST(QuantizationConfigs, MayBeTheTextModelsOwn) {
  const boost::json::value awq = boost::json::parse(R"({"quant_method": "awq", "bits": 4, "group_size": 64})");
  const auto config = QuantizationConfig::parse({{"text_config", {{"quantization_config", awq}}}});
  ASSERT_TRUE(config.ok() && *config) << config.status().message();
  EXPECT_EQ((*config)->group_size, 64);
  EXPECT_FALSE(QuantizationConfig::parse({{"text_config", {{"hidden_size", 8}}}}).value().has_value());
}

TEST(QuantizationConfigs, CodesOfFewBitsMayTakeAByteEach) {
  const auto of_bits = [](int bits) {
    return parsed(R"({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"a": {
        "targets": ["Linear"], "weights": {"num_bits": )" +
                  std::to_string(bits) + R"(, "type": "int", "strategy": "channel"}}}})");
  };
  EXPECT_TRUE(of_bits(4).ok()) << of_bits(4).status().message();
  EXPECT_TRUE(of_bits(8).ok());
  EXPECT_THAT(of_bits(9).status().message(), HasSubstr("num_bits"));
}

TEST(QuantizationConfigs, OfCompressedTensorsHaveGroupsOfModules) {
  const QuantizationConfig config = read(R"({
      "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
      "ignore": ["lm_head", "re:.*mlp\\.gate$"], "sparsity_config": {}, "kv_cache_scheme": {"num_bits": 8},
      "config_groups": {
        "a": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}},
        "b": {"targets": ["re:.*down_proj"], "format": "int-quantized",
              "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
              "input_activations": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": true}}}})");
  ASSERT_EQ(config.groups.size(), 2u);
  EXPECT_EQ(describe(config), "compressed-tensors, W4A16 and W8A8");
  const ModuleGroup& up = **config.group_of("model.layers.3.mlp.up_proj");
  EXPECT_EQ(up.weights.bits, 4);
  EXPECT_EQ(up.weights.group_size, 128);
  EXPECT_FALSE(up.inputs.has_value());
  const ModuleGroup& down = **config.group_of("model.layers.3.mlp.down_proj");
  EXPECT_EQ(down.format, "int-quantized");
  EXPECT_TRUE(down.inputs->dynamic);
  EXPECT_FALSE(config.group_of("lm_head").ok());
  EXPECT_FALSE(config.group_of("model.layers.3.mlp.gate").ok());
}

TEST(QuantizationConfigs, OfCompressedTensorsNameOneClassOfModules) {
  constexpr std::string_view kOfClasses = R"({{"quant_method": "compressed-tensors", "format": "int-quantized",
      "config_groups": {{"a": {{"targets": ["Conv1D"], "weights": {{"num_bits": 8, "type": "int"}}}},
                         "b": {{"targets": ["{}"], "weights": {{"num_bits": 8, "type": "int"}}}}}}}})";
  EXPECT_TRUE(read(fmt::format(kOfClasses, "lm_head")).group_of("transformer.h.0.attn.c_attn").ok());
  EXPECT_THAT(parsed(fmt::format(kOfClasses, "Linear")).status().message(),
              HasSubstr("supported: one group with a class, Linear or Conv1D, among its targets"));
}

TEST(QuantizationConfigs, OfABatchsOwnScalesAreRefused) {
  EXPECT_THAT(parsed(R"({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"a": {
                         "weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                         "input_activations": {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": true}}}})")
                  .status()
                  .message(),
              HasSubstr("config_groups.a.input_activations.strategy is the string \"tensor\"; supported"));
}

TEST(QuantizationConfigs, AnExpressionThatTakesTooLongIsRefused) {
  const ModulePattern pattern = ModulePattern::parse("re:(a+)+$").value();
  EXPECT_FALSE(pattern.matches(std::string(20000, 'a') + "b").ok());
  EXPECT_FALSE(ModulePattern::parse("re:" + std::string(20000, 'a')).ok());
}

TEST(QuantizationConfigs, MayLieBesideTheConfiguration) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "quire-quantize-config";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"model_type": "llama"})";
  std::ofstream(folder / "quantize_config.json") << R"({"bits": 4, "group_size": 128, "desc_act": true, "sym": true})";
  const auto directory = ModelDirectory::open(folder);
  ASSERT_TRUE(directory.ok());
  const auto files = read_folder_files(*directory);
  ASSERT_TRUE(files.ok()) << files.status().message();
  ASSERT_TRUE(files->quantization.has_value());
  EXPECT_EQ(files->quantization->method, QuantMethod::kGptq);
  std::filesystem::remove_all(folder);
}

TEST(QuantizationConfigs, OfModeloptMayLieBesideTheConfiguration) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "quire-hf-quant-config";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << R"({"model_type": "llama"})";
  const auto method_of = [&](const char* quantization) {
    std::ofstream(folder / "hf_quant_config.json")
        << R"({"producer": {"name": "modelopt"}, "quantization": )" << quantization << "}";
    const auto files = read_folder_files(ModelDirectory::open(folder).value());
    EXPECT_TRUE(files.ok()) << files.status().message();
    return files.ok() && files->quantization ? std::optional(files->quantization->method) : std::nullopt;
  };
  EXPECT_EQ(method_of(R"({"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]})"), QuantMethod::kModelopt);
  EXPECT_EQ(method_of(R"({"quant_algo": "MXFP8", "group_size": 32})"), QuantMethod::kModelopt);
  EXPECT_EQ(method_of(R"({"quant_algo": null, "kv_cache_quant_algo": "FP8"})"), std::nullopt);
  std::filesystem::remove_all(folder);
}

// As gpt-oss's own files have it.
TEST(QuantizationConfigs, OfMxfp4AreTaken) {
  EXPECT_EQ(read(R"({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})").method, QuantMethod::kMxfp4);
}

}  // namespace
}  // namespace quire::checkpoint
