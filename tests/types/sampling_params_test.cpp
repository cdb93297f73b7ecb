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
      {"typical_p", &SamplingParams::typical_p, {1e-6f, 0.5f, 1.0f}, {0.0f, -0.5f, 1.001f}},
      {"top_n_sigma", &SamplingParams::top_n_sigma, {-1.0f, 0.0f, 3.0f}, {}},
      {"dynatemp_range", &SamplingParams::dynatemp_range, {0.0f, 0.5f, 3.0f}, {-0.1f}},
      {"dynatemp_exponent", &SamplingParams::dynatemp_exponent, {0.1f, 1.0f, 3.0f}, {0.0f, -1.0f}},
      {"xtc_probability", &SamplingParams::xtc_probability, {0.0f, 0.5f, 1.0f}, {-0.1f, 1.001f}},
      {"xtc_threshold", &SamplingParams::xtc_threshold, {0.0f, 0.1f, 0.5f, 1.0f}, {-0.1f, 1.001f}},
      {"mirostat_tau", &SamplingParams::mirostat_tau, {0.1f, 5.0f}, {0.0f, -1.0f}},
      {"mirostat_eta", &SamplingParams::mirostat_eta, {0.0f, 0.1f, 1.0f}, {-0.1f, 1.001f}},
      {"dry_multiplier", &SamplingParams::dry_multiplier, {0.0f, 0.8f, 5.0f}, {-0.1f}},
      {"dry_base", &SamplingParams::dry_base, {1.0f, 1.75f, 4.0f}, {0.99f, 0.0f, -1.0f}},
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
    for (int count : {-2, -1, 21, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()}) {
      params.*field = count;
      expect_refused(params, name);
    }
    params.*field = -1;
    EXPECT_TRUE(validate(params, {.vocab_size = 100, .max_logprobs = -1}).ok()) << name;
    EXPECT_TRUE(validate(params, {.vocab_size = 100, .max_logprobs = 100}).ok()) << name;
    EXPECT_FALSE(validate(params, {.vocab_size = 100, .max_logprobs = 99}).ok()) << name;
    params.*field = 101;
    EXPECT_FALSE(validate(params, {.vocab_size = 100, .max_logprobs = -1}).ok()) << name;
  }
}

TEST(SamplingParams, AnEmptyStopStringIsRefused) {
  SamplingParams params;
  params.stop = {"\n", "END"};
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.stop.push_back("");
  expect_refused(params, "stop");
}

TEST(SamplingParams, StopStringsNeedText) {
  SamplingParams params;
  params.stop = {"END"};
  params.detokenize = false;
  expect_refused(params, "stop");
  params.stop.clear();
  EXPECT_TRUE(validate(params, kLimits).ok());
}

TEST(SamplingParams, TheNumberOfAnswersIsBounded) {
  SamplingParams params;
  for (int n : {1, 2, 128}) {
    params.n = n;
    EXPECT_TRUE(validate(params, kLimits).ok()) << n;
    EXPECT_EQ(params.num_sequences(), n);
  }
  for (int n : {0, -1, 129, 1000000, std::numeric_limits<int>::min()}) {
    params.n = n;
    expect_refused(params, "n");
  }
  params.n = 3;
  for (int best_of : {3, 128}) {
    params.best_of = best_of;
    EXPECT_TRUE(validate(params, kLimits).ok()) << best_of;
    EXPECT_EQ(params.num_sequences(), best_of);
  }
  for (int best_of : {2, 0, -1, 129}) {
    params.best_of = best_of;
    expect_refused(params, "best_of");
  }
}

TEST(SamplingParams, GreedyAnswersAreAllTheSameSoThereIsOne) {
  SamplingParams params;
  params.temperature = 0.0f;
  params.n = 2;
  expect_refused(params, "n");
  params.n = 1;
  params.best_of = 2;
  expect_refused(params, "best_of");
  params.best_of = 1;
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.best_of = std::nullopt;
  params.n = 2;
  params.use_beam_search = true;
  EXPECT_TRUE(validate(params, kLimits).ok());
}

TEST(SamplingParams, ABeamSearchIsAsWideAsItSaysElseAsManyAnswersAreWanted) {
  SamplingParams params;
  params.use_beam_search = true;
  params.n = 3;
  EXPECT_TRUE(validate(params, kLimits).ok());
  EXPECT_EQ(params.num_sequences(), 3);
  params.best_of = 5;
  EXPECT_EQ(params.num_sequences(), 5);
  params.beam_width = 8;
  EXPECT_TRUE(validate(params, kLimits).ok());
  EXPECT_EQ(params.num_sequences(), 8);
  for (int width : {2, 0, -1, 129}) {
    params.beam_width = width;
    expect_refused(params, "beam_width");
  }
  params.beam_width = 4;
  for (float penalty : {-2.0f, 0.0f, 2.0f}) {
    params.length_penalty = penalty;
    EXPECT_TRUE(validate(params, kLimits).ok());
  }
  for (float penalty : {kNaN, kInf, -kInf}) {
    params.length_penalty = penalty;
    expect_refused(params, "length_penalty");
  }
}

TEST(SamplingParams, WhatOnlyShapesADrawContradictsABeamSearch) {
  const std::vector<std::pair<std::string, std::function<void(SamplingParams&)>>> changes = {
      {"top_p", [](SamplingParams& p) { p.top_p = 0.9f; }},
      {"top_k", [](SamplingParams& p) { p.top_k = 5; }},
      {"min_p", [](SamplingParams& p) { p.min_p = 0.1f; }},
      {"typical_p", [](SamplingParams& p) { p.typical_p = 0.9f; }},
      {"top_n_sigma", [](SamplingParams& p) { p.top_n_sigma = 1.0f; }},
      {"dynatemp_range", [](SamplingParams& p) { p.dynatemp_range = 0.5f; }},
      {"xtc_probability", [](SamplingParams& p) { p.xtc_probability = 0.5f; }},
      {"mirostat", [](SamplingParams& p) { p.mirostat = 2; }},
      {"dry_multiplier", [](SamplingParams& p) { p.dry_multiplier = 0.8f; }},
      {"repetition_detection",
       [](SamplingParams& p) {
         p.repetition_detection = {{4, 1, 3}};
       }},
  };
  for (const auto& [field, change] : changes) {
    SamplingParams params;
    change(params);
    EXPECT_TRUE(validate(params, kLimits).ok()) << field;
    params.use_beam_search = true;
    params.beam_width = 4;
    expect_refused(params, field);
  }
  SamplingParams params;
  params.use_beam_search = true;
  params.repetition_penalty = 1.2f;
  params.temperature = 0.7f;
  params.bad_words = {"no"};
  params.allowed_token_ids = {1, 2};
  EXPECT_TRUE(validate(params, kLimits).ok());
}

TEST(SamplingParams, WhatOnlyABeamSearchHasContradictsADraw) {
  SamplingParams width;
  width.beam_width = 4;
  expect_refused(width, "beam_width");
  SamplingParams penalty;
  penalty.length_penalty = 0.9f;
  expect_refused(penalty, "length_penalty");
  for (EarlyStopping stopping : {EarlyStopping::kTrue, EarlyStopping::kNever}) {
    SamplingParams params;
    params.early_stopping = stopping;
    expect_refused(params, "early_stopping");
  }
}

TEST(SamplingParams, AllowedTokensAreAtLeastOneOfTheVocabulary) {
  SamplingParams params;
  params.allowed_token_ids = {0, 99};
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.allowed_token_ids = std::vector<TokenId>{};
  expect_refused(params, "allowed_token_ids");
  for (TokenId id : {-1, 100}) {
    params.allowed_token_ids = {5, id};
    expect_refused(params, "allowed_token_ids");
  }
}

TEST(SamplingParams, BadWordsAreWordsOfTheVocabularyAndNotTooMany) {
  SamplingParams params;
  params.bad_words = {"x"};
  params.bad_words_ids = {{5}, {0, 99}};
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.bad_words_ids = {{5}, {}};
  expect_refused(params, "bad_words");
  for (TokenId id : {-1, 100}) {
    params.bad_words_ids = {{id, 5}};
    expect_refused(params, "bad_words");
  }
  params.bad_words_ids.assign(1024, {1});
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.bad_words_ids.assign(1025, {1});
  expect_refused(params, "bad_words");
  params.bad_words_ids = {std::vector<TokenId>(16384, 1)};
  EXPECT_TRUE(validate(params, kLimits).ok());
  params.bad_words_ids.push_back({1});
  expect_refused(params, "bad_words");
  params.bad_words_ids.clear();
  params.bad_words.assign(1025, "x");
  expect_refused(params, "bad_words");
  params.bad_words = {"x", ""};
  expect_refused(params, "bad_words");
}

TEST(SamplingParams, DryBoundsItsNumbersAndBreakers) {
  SamplingParams params;
  for (int length : {0, 1, 1000000}) {
    params.dry_allowed_length = length;
    EXPECT_TRUE(validate(params, kLimits).ok()) << length;
  }
  params.dry_allowed_length = -1;
  expect_refused(params, "dry_allowed_length");
  params = {};
  for (int last_n : {-1, 0, 1, 1000000}) {
    params.dry_penalty_last_n = last_n;
    EXPECT_TRUE(validate(params, kLimits).ok()) << last_n;
  }
  params.dry_penalty_last_n = -2;
  expect_refused(params, "dry_penalty_last_n");
  params = {};
  params.dry_sequence_breakers = {"\n", ""};
  expect_refused(params, "dry_sequence_breakers");
  params.dry_sequence_breakers.assign(65, "x");
  expect_refused(params, "dry_sequence_breakers");
  params.dry_sequence_breakers.clear();
  EXPECT_TRUE(validate(params, kLimits).ok());
}

TEST(SamplingParams, MirostatHasTwoVersions) {
  SamplingParams params;
  for (int version : {0, 1, 2}) {
    params.mirostat = version;
    EXPECT_TRUE(validate(params, kLimits).ok()) << version;
  }
  for (int version : {-1, 3}) {
    params.mirostat = version;
    expect_refused(params, "mirostat");
  }
}

TEST(SamplingParams, RepetitionDetectionNamesWhatIsWrong) {
  const auto message = [](RepetitionDetection detection) {
    SamplingParams params;
    params.repetition_detection = detection;
    const Status status = validate(params, kLimits);
    if (!status.ok()) {
      EXPECT_EQ(status.param(), "repetition_detection");
    }
    return status.message();
  };
  EXPECT_EQ(message({0, 0, 0}), "");
  EXPECT_EQ(message({2048, 2048, 2}), "");
  EXPECT_THAT(message({-1, 0, 2}), HasSubstr("max_pattern_size"));
  EXPECT_THAT(message({2049, 0, 2}), HasSubstr("max_pattern_size"));
  EXPECT_THAT(message({4, -1, 2}), HasSubstr("min_pattern_size"));
  EXPECT_THAT(message({4, 5, 2}), HasSubstr("min_pattern_size"));
  EXPECT_THAT(message({4, 0, 1}), HasSubstr("min_count"));
}

TEST(SamplingParams, APromptIsCutToOneTokenAtLeastOrToWhatTheContextHolds) {
  SamplingParams params;
  for (int kept : {-1, 1, 4096}) {
    params.truncate_prompt_tokens = kept;
    EXPECT_TRUE(validate(params, kLimits).ok()) << kept;
  }
  for (int kept : {-2, 0, std::numeric_limits<int>::min()}) {
    params.truncate_prompt_tokens = kept;
    expect_refused(params, "truncate_prompt_tokens");
  }
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
