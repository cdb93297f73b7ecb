// What C and Python say as JSON becomes what the engine takes.
#include "c_api/read_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::c_api {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(ReadConfig, FieldsGoWhereTheirNamesSayAndTheOthersKeepTheirDefaults) {
  EngineConfig config;
  const Status status = read_config(
      R"({"max_model_len": 2048, "dtype": "half", "device": "cuda:1", "gpu_memory_utilization": 0.25, "swap_space": null,
          "enable_prefix_caching": false, "seed": -1, "threads": 2.0,
          "kv_offload_dir": "/kv", "kv_offload_disk_size": 2.5, "kv_offload_max_age": 60,
          "speculative_config": {"method": "ngram", "prompt_lookup_max": 4}})",
      config);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(config.max_model_len, 2048);
  EXPECT_EQ(config.dtype, WeightDType::kFloat16);
  EXPECT_EQ(config.device, DeviceChoice::cuda(1));
  EXPECT_EQ(config.memory_utilization, 0.25);
  EXPECT_FALSE(config.enable_prefix_caching);
  EXPECT_EQ(config.seed, ~uint64_t{0});
  EXPECT_EQ(config.speculative_config.method, SpeculativeMethod::kNgram);
  EXPECT_EQ(config.speculative_config.prompt_lookup_max, 4);
  EXPECT_EQ(config.threads, 2);
  EXPECT_EQ(config.kv_offload_dir, "/kv");
  EXPECT_EQ(config.kv_offload_disk_size, 2.5);
  EXPECT_EQ(config.kv_offload_max_age, 60);
  EXPECT_EQ(config.max_num_seqs, EngineConfig().max_num_seqs);
}

TEST(ReadConfig, AModelThatDraftsHasItsOwnFormatAndLength) {
  EngineConfig config;
  const Status status = read_config(
      R"({"speculative_config": {"model": "./m", "quantization": "int8", "max_model_len": 2048,
                                 "draft_tensor_parallel_size": 1}})",
      config);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(config.speculative_config.method, SpeculativeMethod::kDraftModel);
  EXPECT_EQ(config.speculative_config.quantization, Quantization::kInt8);
  EXPECT_EQ(config.speculative_config.max_model_len, 2048);
}

TEST(ReadConfig, WhatIsWrongIsNamed) {
  EngineConfig config;
  const auto refused = [&](const char* text) {
    Status status = read_config(text, config);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    return status;
  };
  EXPECT_EQ(refused(R"({"max_modle_len": 1})").param(), "max_modle_len");
  EXPECT_THAT(refused(R"({"max_model_len": "long"})").message(),
              HasSubstr("max_model_len: expected a whole number, found a string"));
  EXPECT_THAT(refused(R"({"threads": 3000000000})").message(), HasSubstr("32 bits"));
  EXPECT_THAT(refused(R"({"dtype": "int3"})").message(), HasSubstr("int3"));
  EXPECT_THAT(refused(R"({"speculative_config": {"method": "ngram", "quantization": "int8"}})").message(),
              HasSubstr("of a model that drafts"));
  EXPECT_THAT(refused(R"({"speculative_config": {"model": "./m", "quantization": "int3"}})").message(),
              HasSubstr("speculative_config: quantization \"int3\" is not known"));
  EXPECT_THAT(refused(R"({"speculative_config": {"model": "./m", "max_model_len": -1}})").message(),
              StartsWith("speculative_config: max_model_len is -1"));
  EXPECT_THAT(refused(R"({"speculative_config": {"model": "./m", "draft_tensor_parallel_size": 2}})").message(),
              HasSubstr("draft_tensor_parallel_size must be 1"));
  EXPECT_THAT(refused("[1]").message(), HasSubstr("must be a JSON object, found a list"));
  EXPECT_THAT(refused("{").message(), HasSubstr("is not JSON"));
}

TEST(ReadSampling, AllShapesOfFieldsAreRead) {
  SamplingParams params;
  const Status status = read_sampling(
      R"({"temperature": 0, "top_k": 5, "seed": 7, "stop": "END", "stop_token_ids": [9, 3], "logprobs": 2,
          "logit_bias": {"4": 200, "5": -1.5}, "early_stopping": "never", "bad_words": ["a", "b"],
          "repetition_detection": {"max_pattern_size": 8, "min_count": 3}, "max_tokens": null})",
      params);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(params.temperature, 0);
  EXPECT_EQ(params.top_k, 5);
  EXPECT_EQ(params.seed, 7U);
  EXPECT_THAT(params.stop, ElementsAre("END"));
  EXPECT_EQ(params.stop_token_ids, TokenSet({3, 9}));
  EXPECT_EQ(params.logprobs, 2);
  EXPECT_THAT(params.logit_bias, ElementsAre(std::pair(4, 100.0f), std::pair(5, -1.5f)));
  EXPECT_EQ(params.early_stopping, EarlyStopping::kNever);
  EXPECT_THAT(params.bad_words, ElementsAre("a", "b"));
  EXPECT_EQ(params.repetition_detection->max_pattern_size, 8);
  EXPECT_EQ(params.repetition_detection->min_count, 3);
  EXPECT_FALSE(params.max_tokens);
}

TEST(ReadSampling, AStructuredOutputIsOneOfSixKinds) {
  const auto output_of = [](const char* text) {
    SamplingParams params;
    const Status status = read_sampling(text, params);
    EXPECT_TRUE(status.ok()) << status.message();
    return *params.structured_output;
  };
  EXPECT_EQ(output_of(R"({"structured_outputs": {"json": {"type": "object"}}})").text, R"({"type":"object"})");
  EXPECT_EQ(output_of(R"({"structured_outputs": {"regex": "a+", "json": null}})").kind, StructuredOutput::Kind::kRegex);
  EXPECT_THAT(output_of(R"({"structured_outputs": {"choice": ["x", "y"]}})").choices, ElementsAre("x", "y"));
  EXPECT_FALSE(
      output_of(R"({"structured_outputs": {"json_object": true, "disable_any_whitespace": true}})").any_whitespace);

  SamplingParams params;
  EXPECT_THAT(read_sampling(R"({"structured_outputs": {"regex": "a", "choice": ["b"]}})", params).message(),
              HasSubstr("structured_outputs: expected one of json, regex"));
  EXPECT_EQ(read_sampling(R"({"structured_outputs": {}})", params).param(), "structured_outputs");
  EXPECT_THAT(read_sampling(R"({"structured_outputs": {"xml": "a"}})", params).message(),
              HasSubstr("there is no structured output parameter of the name \"xml\""));
}

TEST(ReadSampling, WhatIsWrongIsNamed) {
  SamplingParams params;
  EXPECT_EQ(read_sampling(R"({"temprature": 1})", params).param(), "temprature");
  EXPECT_EQ(read_sampling(R"({"top_p": "high"})", params).param(), "top_p");
  EXPECT_THAT(read_sampling(R"({"temperature": 1e60})", params).message(), HasSubstr("32 bits"));
  EXPECT_THAT(read_sampling(R"({"logit_bias": {"the": 1}})", params).message(), HasSubstr("\"the\""));
  EXPECT_THAT(read_sampling(R"({"stop": [1]})", params).message(), HasSubstr("found the number 1"));
  EXPECT_THAT(read_sampling(R"({"early_stopping": "now"})", params).message(), HasSubstr("\"never\""));
}

}  // namespace
}  // namespace quire::c_api
