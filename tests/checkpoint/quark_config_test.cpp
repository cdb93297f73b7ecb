// quantization_config as AMD's Quark writes it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/quantization_config.h"

namespace quire::checkpoint {
namespace {

using ::testing::HasSubstr;
using Per = RoundingScheme::Per;

constexpr std::string_view kFloat8 = R"({"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": false})";
constexpr std::string_view kMx = R"({"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1,
    "scale_format": "e8m0", "scale_calculation_mode": "even", "is_dynamic": true})";

// One for all modules, with what is said beside it.
Result<std::optional<QuantizationConfig>> parsed(std::string_view weight, std::string_view inputs,
                                                 std::string_view more = "") {
  return QuantizationConfig::parse(
      {{"quantization_config",
        boost::json::parse(fmt::format(R"({{"quant_method": "quark", "global_quant_config": {{"weight": {},
            "input_tensors": {}, "output_tensors": null, "bias": null}}, "quant_mode": "eager_mode"{}}})",
                                       weight, inputs, more))}});
}
std::string refused(std::string_view weight, std::string_view inputs, std::string_view more = "") {
  return std::string(parsed(weight, inputs, more).status().message());
}
std::string with(std::string_view specification, std::string_view key, std::string_view value) {
  boost::json::object object = boost::json::parse(specification).as_object();
  object[key] = boost::json::parse(value);
  return boost::json::serialize(object);
}

TEST(QuarkConfigs, SayHowModulesAreStoredByPattern) {
  const auto found = parsed(kFloat8, kFloat8, R"(,
      "exclude": ["lm_head", "*.mlp.gate", "re:.*router$"],
      "export": {"kv_cache_group": ["*k_proj"], "pack_method": "reorder", "weight_format": "real_quantized"},
      "layer_quant_config": {
        "*k_proj": {"weight": {"dtype": "int8", "qscheme": "per_channel", "ch_axis": 0, "symmetric": true},
                    "input_tensors": null, "bias": null,
                    "output_tensors": {"dtype": "fp8_e4m3", "qscheme": "per_tensor"}},
        "model.layers.0.mlp.down_proj": {"weight": null, "input_tensors": null}})");
  ASSERT_TRUE(found.ok()) << found.status().message();
  const QuantizationConfig& config = **found;
  const ModuleGroup& all = **config.group_of("model.layers.1.mlp.down_proj");
  EXPECT_EQ(all.format, "float-quantized");
  EXPECT_EQ(all.weights.per, Per::kTensor);
  EXPECT_FALSE(all.inputs->dynamic);
  const ModuleGroup& keys = **config.group_of("model.layers.1.self_attn.k_proj");
  EXPECT_EQ(keys.format, "int-quantized");
  EXPECT_EQ(keys.weights.per, Per::kChannel);
  EXPECT_FALSE(keys.inputs.has_value());
  for (const char* left_out : {"lm_head", "model.layers.0.mlp.gate", "model.router"})
    EXPECT_THAT(config.group_of(left_out).status().message(), HasSubstr("quantization_config.exclude has it"));
  EXPECT_TRUE(config.group_of("model.layers.0.mlp.gate_proj").ok());
}

TEST(QuarkConfigs, RowsAndGroupsMayHaveScalesOfTheirOwn) {
  const auto rows = parsed(with(kFloat8, "qscheme", R"("per_channel")"),
                           R"({"dtype": "fp8_e4m3", "qscheme": "per_channel", "is_dynamic": true})");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_EQ((*rows)->groups[0].inputs->per, Per::kToken);
  const auto mx = parsed(with(kMx, "is_dynamic", "false"), kMx);
  ASSERT_TRUE(mx.ok()) << mx.status().message();
  EXPECT_EQ((*mx)->groups[0].format, "mxfp4-pack-quantized");
  EXPECT_EQ((*mx)->groups[0].inputs->group_size, 32);
  EXPECT_EQ(parsed(R"({"dtype": "uint4", "qscheme": "per_group", "group_size": 128, "symmetric": false})", "null")
                .value()
                ->groups[0]
                .format,
            "uint4");
}

TEST(QuarkConfigs, NameTheFieldThatIsNotRead) {
  EXPECT_THAT(refused(with(kFloat8, "dtype", R"("fp6_e2m3")"), "null"),
              HasSubstr("global_quant_config.weight.dtype is the string \"fp6_e2m3\"; supported"));
  EXPECT_THAT(refused(with(kFloat8, "qscheme", R"("per_block")"), "null"), HasSubstr("weight.qscheme"));
  EXPECT_THAT(refused(with(kMx, "is_dynamic", "false"), with(kMx, "scale_calculation_mode", R"("floor")")),
              HasSubstr("input_tensors.scale_calculation_mode is the string \"floor\"; supported: \"even\""));
  EXPECT_THAT(refused(with(kMx, "scale_format", R"("e4m3")"), "null"), HasSubstr("weight"));
  EXPECT_THAT(
      refused(kFloat8, with(kFloat8, "is_dynamic", "true")),
      HasSubstr("input_tensors.qscheme is the string \"per_tensor\"; supported: \"per_channel\" where each row"));
  EXPECT_THAT(refused(R"([{}, {}])", "null"), HasSubstr("global_quant_config.weight is"));
  EXPECT_THAT(refused(kFloat8, "null", R"(, "export": {"weight_format": "fake_quantized"})"),
              HasSubstr("export.weight_format is the string \"fake_quantized\"; supported: \"real_quantized\""));
  EXPECT_THAT(refused(R"({"dtype": "int4", "qscheme": "per_group", "group_size": 128})", "null",
                      R"(, "export": {"pack_method": "order"})"),
              HasSubstr("export.pack_method"));
  EXPECT_THAT(refused(kFloat8, "null", R"(, "algo_config": [{"name": "quarot", "r1": true, "r4": true}])"),
              HasSubstr("algo_config.r4 is true; supported: false: no rotated inputs"));
  EXPECT_THAT(refused(kFloat8, "null", R"(, "algo_config": [{"name": "rotation", "online_config":
                      {"online_rotation_layers": ["model.layers.0.mlp.down_proj"]}}])"),
              HasSubstr("algo_config.online_config.online_rotation_layers is"));
  EXPECT_TRUE(parsed(kFloat8, "null", R"(, "algo_config": [{"name": "awq"}])").ok());
  EXPECT_THAT(refused(kFloat8, "null", R"(, "layer_type_quant_config": {"Linear": {}})"),
              HasSubstr("layer_type_quant_config"));
}

}  // namespace
}  // namespace quire::checkpoint
