#include "types/sampling_params.h"

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using testing::HasSubstr;

constexpr SamplingLimits kLimits{.vocab_size = 100, .max_logprobs = 20};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct FloatField {
  std::string name;
  float SamplingParams::*field;
  std::vector<float> good;
  std::vector<float> bad;
};

std::vector<FloatField> float_fields() {
  return {
      {"temperature", &SamplingParams::temperature, {0.0f, 1e-6f, 1.0f, 2.0f}, {-0.1f, 2.01f}},
      {"top_p", &SamplingParams::top_p, {1e-6f, 0.5f, 1.0f}, {0.0f, -0.5f, 1.001f}},
      {"min_p", &SamplingParams::min_p, {0.0f, 0.5f, 1.0f}, {-0.001f, 1.001f}},
      {"presence_penalty", &SamplingParams::presence_penalty, {-2.0f, 0.0f, 2.0f}, {-2.1f, 2.1f}},
      {"frequency_penalty", &SamplingParams::frequency_penalty, {-2.0f, 2.0f}, {-2.1f, 2.1f}},
      {"repetition_penalty", &SamplingParams::repetition_penalty, {0.01f, 1.0f, 9.0f}, {0.0f, -1.0f}},
  };
}

void expect_refused(const SamplingParams& params, const std::string& field) {
  const Status status = validate(params, kLimits);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << field;
  EXPECT_EQ(status.param(), field);
  EXPECT_THAT(status.message(), HasSubstr(field));
}

TEST(SamplingParams, TheDefaultsAreValid) {
  EXPECT_TRUE(validate({}, kLimits).ok());
}

TEST(SamplingParams, FloatsInTheirRangeAreAcceptedAndOthersRefusedByName) {
  for (const FloatField& one : float_fields()) {
    SamplingParams params;
    for (float value : one.good) {
      params.*one.field = value;
      EXPECT_TRUE(validate(params, kLimits).ok()) << one.name << " = " << value;
    }
    for (float value : one.bad) {
      params.*one.field = value;
      expect_refused(params, one.name);
    }
  }
}

TEST(SamplingParams, NaNAndInfinityAreOutOfEveryRange) {
  for (const FloatField& one : float_fields()) {
    for (float value : {kNaN, kInf, -kInf}) {
      SamplingParams params;
      params.*one.field = value;
      expect_refused(params, one.name);
    }
  }
  for (float value : {kNaN, kInf, -kInf}) {
    SamplingParams params;
    params.logit_bias = {{1, value}};
    expect_refused(params, "logit_bias");
  }
}

TEST(SamplingParams, TopKOfZeroOrMinusOneIsOffAndLessIsRefused) {
  SamplingParams params;
  for (int k : {-1, 0, 1, 1000000}) {
    params.top_k = k;
    EXPECT_TRUE(validate(params, kLimits).ok()) << k;
  }
  for (int k : {-2, std::numeric_limits<int>::min()}) {
    params.top_k = k;
    expect_refused(params, "top_k");
  }
}

TEST(SamplingParams, TokenCountsMustNotBeNegativeNorContradictEachOther) {
  SamplingParams params;
  params.max_tokens = 0;
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.max_tokens = -1;
  expect_refused(params, "max_tokens");
  params.max_tokens = 5;
  params.min_tokens = 5;
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.min_tokens = 6;
  expect_refused(params, "min_tokens");
  params.min_tokens = -1;
  expect_refused(params, "min_tokens");
  params.max_tokens = std::nullopt;
  params.min_tokens = 1000;
  EXPECT_TRUE(validate(params, kLimits).ok());
}

TEST(SamplingParams, TokenIdsMustBeInTheVocabulary) {
  for (TokenId id : {0, 99}) {
    SamplingParams params;
    params.stop_token_ids = {id};
    params.logit_bias = {{id, 1.0f}};
    EXPECT_TRUE(validate(params, kLimits).ok()) << id;
  }
  for (TokenId id : {-1, 100, std::numeric_limits<TokenId>::max(), std::numeric_limits<TokenId>::min()}) {
    SamplingParams stops;
    stops.stop_token_ids = {5, id};
    expect_refused(stops, "stop_token_ids");
    SamplingParams bias;
    bias.logit_bias = {{5, 1.0f}, {id, 1.0f}};
    expect_refused(bias, "logit_bias");
  }
}

TEST(SamplingParams, LogprobsAreBoundedByTheServer) {
  for (auto [name, field] : {std::pair{"logprobs", &SamplingParams::logprobs},
                             std::pair{"prompt_logprobs", &SamplingParams::prompt_logprobs}}) {
    SamplingParams params;
    for (int count : {0, 20}) {
      params.*field = count;
      EXPECT_TRUE(validate(params, kLimits).ok()) << name << count;
    }
    for (int count : {-1, 21, std::numeric_limits<int>::max()}) {
      params.*field = count;
      expect_refused(params, name);
    }
  }
}

TEST(SamplingParams, AnEmptyStopStringIsRefused) {
  SamplingParams params;
  params.stop = {"\n", "END"};
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.stop.push_back("");
  expect_refused(params, "stop");
}

TEST(SamplingParams, TemperaturesUnderOneHundredThousandthAreGreedy) {
  SamplingParams params;
  EXPECT_FALSE(params.greedy());
  params.temperature = 0.0f;
  EXPECT_TRUE(params.greedy());
  params.temperature = 0.9e-5f;
  EXPECT_TRUE(params.greedy());
  params.temperature = 1.1e-5f;
  EXPECT_FALSE(params.greedy());
}

}  // namespace
}  // namespace quire
