// Vectors and scores through the C++ API, of tiny random models of each family: against the reference
// (scripts/make_embedding_data.py), and against themselves in other batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <boost/json.hpp>

#include "engine/engine.h"
#include "quire/llm.h"

namespace quire {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

std::string embedding_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/embeddings/" + name;
}

json::value embedding_golden(const std::string& name) {
  std::ifstream file(embedding_path(name) + "/golden.json");
  std::ostringstream text;
  text << file.rdbuf();
  return json::parse(text.str());
}

EngineConfig embedding_config(const std::string& name) {
  return {.model = embedding_path(name), .device = DeviceChoice::cpu(), .threads = 2};
}

std::unique_ptr<LLM> load(EngineConfig config, Drive drive = Drive::kOwnThread) {
  auto llm = LLM::create(std::move(config), drive);
  EXPECT_TRUE(llm.ok()) << llm.status().message();
  return llm.ok() ? std::move(*llm) : nullptr;
}

std::vector<float> floats(const json::value& list) {
  return json::value_to<std::vector<float>>(list);
}

std::vector<float> normalized(std::vector<float> vector) {
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * static_cast<double>(value);
  for (float& value : vector) value = static_cast<float>(value / std::sqrt(squares));
  return vector;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected, float tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], tolerance) << "number " << i;
}

PoolingOptions quietly() {
  PoolingOptions options;
  options.progress = false;
  return options;
}

std::vector<Prompt> prompts_of(const json::value& golden) {
  std::vector<Prompt> prompts;
  for (const json::value& one : golden.at("texts").as_array()) {
    prompts.emplace_back(std::string(one.at("text").as_string()));
  }
  return prompts;
}

class EmbeddingModels : public testing::TestWithParam<std::string> {};

TEST_P(EmbeddingModels, GiveTheReferencesVectors) {
  const auto llm = load(embedding_config(GetParam()));
  ASSERT_NE(llm, nullptr);
  const json::value golden = embedding_golden(GetParam());
  const std::vector<Prompt> prompts = prompts_of(golden);
  const auto outputs = llm->embed(prompts, quietly());
  ASSERT_TRUE(outputs.ok()) << outputs.status().message();
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(std::get<std::string>(prompts[i]));
    const json::value& one = golden.at("texts").at(i);
    EXPECT_EQ((*outputs)[i].prompt_token_ids, json::value_to<std::vector<TokenId>>(one.at("ids")));
    const std::vector<float> expected = floats(one.at("vector"));
    const bool is_normal = golden.at("normalize").as_bool();
    expect_near((*outputs)[i].embedding, is_normal ? normalized(expected) : expected, 2e-5f);
  }
}

// Alone, among others, in other orders, with other steps: the same bits.
TEST_P(EmbeddingModels, GiveTheSameBitsInAnyBatch) {
  const json::value golden = embedding_golden(GetParam());
  std::vector<Prompt> prompts;
  for (const json::value& one : golden.at("texts").as_array()) {
    prompts.emplace_back(json::value_to<std::vector<TokenId>>(one.at("ids")));
  }
  const auto llm = load(embedding_config(GetParam()));
  ASSERT_NE(llm, nullptr);
  const auto together = llm->embed(prompts, quietly());
  ASSERT_TRUE(together.ok()) << together.status().message();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto alone = llm->embed({prompts[i]}, quietly());
    ASSERT_TRUE(alone.ok());
    EXPECT_EQ((*alone)[0].embedding, (*together)[i].embedding) << "text " << i;
  }
  EngineConfig small = embedding_config(GetParam());
  small.max_num_batched_tokens = 16;  // decoders take long texts in pieces
  small.max_num_seqs = 3;
  const auto other = load(small);
  ASSERT_NE(other, nullptr);
  std::vector<Prompt> many;
  for (int round = 0; round < 5; ++round) many.insert(many.end(), prompts.rbegin(), prompts.rend());
  const auto in_pieces = other->embed(many, quietly());
  ASSERT_TRUE(in_pieces.ok()) << in_pieces.status().message();
  for (size_t i = 0; i < many.size(); ++i) {
    EXPECT_EQ((*in_pieces)[i].embedding, (*together)[prompts.size() - 1 - i % prompts.size()].embedding);
  }
}

INSTANTIATE_TEST_SUITE_P(All, EmbeddingModels,
                         testing::Values("bert_mean", "bert_cls", "bert_plain", "xlm_roberta", "roberta", "modern_bert",
                                         "nomic_bert", "qwen3_embedding", "bert_dense", "bert_joined", "qwen3_weighted",
                                         "roberta_padded", "bert_residual"));

class Classifiers : public testing::TestWithParam<std::string> {};

TEST_P(Classifiers, GiveTheReferencesProbabilities) {
  const auto llm = load(embedding_config(GetParam()));
  ASSERT_NE(llm, nullptr);
  const json::value golden = embedding_golden(GetParam());
  const std::vector<Prompt> prompts = prompts_of(golden);
  const auto outputs = llm->classify(prompts, quietly());
  ASSERT_TRUE(outputs.ok()) << outputs.status().message();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<float> logits = floats(golden.at("texts").at(i).at("logits"));
    std::vector<float> expected;
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    for (const float logit : logits) {
      expected.push_back(logits.size() == 1 ? 1 / (1 + std::exp(-logit))
                                            : static_cast<float>(std::exp(static_cast<double>(logit)) / sum));
    }
    expect_near((*outputs)[i].probabilities, expected, 2e-5f);
    const auto best = std::max_element(expected.begin(), expected.end()) - expected.begin();
    EXPECT_EQ((*outputs)[i].label, "LABEL_" + std::to_string(best));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Classifiers,
                         testing::Values("bert_classes", "bert_reranker", "xlm_roberta_reranker",
                                         "modern_bert_reranker", "qwen2_classes", "llama_reward", "modern_bert_biased",
                                         "nomic_bert_reranker"));

class Rerankers : public testing::TestWithParam<std::string> {};

TEST_P(Rerankers, ScorePairsAsTheReferenceDoes) {
  const auto llm = load(embedding_config(GetParam()));
  ASSERT_NE(llm, nullptr);
  const json::value golden = embedding_golden(GetParam());
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const json::value& one : golden.at("pairs").as_array()) {
    pairs.emplace_back(one.at("first").as_string(), one.at("second").as_string());
  }
  const auto scores = llm->score(pairs, quietly());
  ASSERT_TRUE(scores.ok()) << scores.status().message();
  for (size_t i = 0; i < pairs.size(); ++i) {
    const float logit = floats(golden.at("pairs").at(i).at("logits")).front();
    EXPECT_NEAR((*scores)[i], 1 / (1 + std::exp(-logit)), 2e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Rerankers,
                         testing::Values("bert_reranker", "xlm_roberta_reranker", "modern_bert_reranker",
                                         "nomic_bert_reranker"));

TEST(Pooling, AGgufFileGivesWhatTheDirectoryGives) {
  EngineConfig config = embedding_config("bert_mean.gguf");
  const auto file = load(config);
  const auto folder = load(embedding_config("bert_mean"));
  ASSERT_TRUE(file != nullptr && folder != nullptr);
  const json::value golden = embedding_golden("bert_mean");
  for (const json::value& one : golden.at("texts").as_array()) {
    const std::string text(one.at("text").as_string());
    const auto a = file->embed({text}, quietly());
    const auto b = folder->embed({text}, quietly());
    ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
    EXPECT_EQ((*a)[0].prompt_token_ids, (*b)[0].prompt_token_ids) << text;
    EXPECT_EQ((*a)[0].embedding, (*b)[0].embedding);
  }
}

TEST(Pooling, AModelThatGeneratesJudgesByTwoWords) {
  EngineConfig config = embedding_config("qwen3_reranker");
  config.convert = Convert::kClassify;
  const auto llm = load(config);
  ASSERT_NE(llm, nullptr);
  const json::value golden = embedding_golden("qwen3_reranker");
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const json::value& one : golden.at("judged").as_array()) {
    pairs.emplace_back(one.at("first").as_string(), one.at("second").as_string());
  }
  const auto scores = llm->score(pairs, quietly());
  ASSERT_TRUE(scores.ok()) << scores.status().message();
  for (size_t i = 0; i < pairs.size(); ++i) {
    EXPECT_NEAR((*scores)[i], golden.at("judged").at(i).at("score").as_double(), 1e-3) << "pair " << i;
  }
}

TEST(Pooling, AMeanOverADecodersTextIsTheSameWhateverTheCacheHas) {
  const auto llm = load(embedding_config("mistral_mean"));
  ASSERT_NE(llm, nullptr);
  const json::value golden = embedding_golden("mistral_mean");
  for (int round = 0; round < 2; ++round) {
    for (const json::value& one : golden.at("texts").as_array()) {
      const auto output = llm->embed({std::string(one.at("text").as_string())}, quietly());
      ASSERT_TRUE(output.ok());
      expect_near((*output)[0].embedding, floats(one.at("vector")), 5e-3f);  // keys and values of 16 bits
    }
  }
}

TEST(Pooling, WhoeverMakesTheStepsEmbedsTheSame) {
  const auto llm = load(embedding_config("bert_mean"));
  const auto stepping = load(embedding_config("bert_mean"), Drive::kCaller);
  ASSERT_TRUE(llm != nullptr && stepping != nullptr);
  const std::vector<Prompt> prompts(300, std::string("The cat sat."));
  const auto one = llm->embed({prompts[0]}, quietly());
  const auto all = stepping->embed(prompts, quietly());
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_EQ(all->size(), prompts.size());
  for (const EmbeddingOutput& output : *all) EXPECT_EQ(output.embedding, (*one)[0].embedding);
}

TEST(Pooling, APromptStandsBeforeTheTextByItsName) {
  const auto llm = load(embedding_config("bert_mean"));
  ASSERT_NE(llm, nullptr);
  PoolingOptions options = quietly();
  options.prompt_name = "query";
  const auto named = llm->embed({std::string("a dog")}, options);
  const auto spelled = llm->embed({std::string("query: a dog")}, quietly());
  ASSERT_TRUE(named.ok() && spelled.ok());
  EXPECT_EQ((*named)[0].embedding, (*spelled)[0].embedding);
  options.prompt_name = "poem";
  EXPECT_THAT(llm->embed({std::string("a dog")}, options).status().message(),
              HasSubstr("no prompt named \"poem\"; it has: query, document"));
}

TEST(Pooling, LongTextsAreRefusedOrCutBehindWhichTheEndStays) {
  const auto llm = load(embedding_config("bert_mean"));
  ASSERT_NE(llm, nullptr);
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the cat ";
  EXPECT_EQ(llm->engine().max_model_len(), 96);  // sentence_bert_config.json
  EXPECT_THAT(llm->embed({text}, quietly()).status().message(), HasSubstr("at most 96"));
  PoolingOptions cut = quietly();
  cut.max_tokens = -1;
  const auto output = llm->embed({text}, cut);
  ASSERT_TRUE(output.ok()) << output.status().message();
  const std::vector<TokenId>& ids = (*output)[0].prompt_token_ids;
  EXPECT_EQ(ids.size(), 96u);
  EXPECT_EQ(ids.front(), *llm->engine().tokenizer()->token_to_id("[CLS]"));
  EXPECT_EQ(ids.back(), *llm->engine().tokenizer()->token_to_id("[SEP]"));
}

TEST(Pooling, VectorsAreCutWhereTheModelWasMadeForIt) {
  EngineConfig config = embedding_config("bert_mean");
  PoolingOptions options = quietly();
  options.dimensions = 8;
  const auto plain = load(config);
  ASSERT_NE(plain, nullptr);
  EXPECT_THAT(plain->embed({std::string("a dog")}, options).status().message(), HasSubstr("Matryoshka"));
  config.matryoshka = true;
  const auto nested = load(config);
  ASSERT_NE(nested, nullptr);
  const auto cut = nested->embed({std::string("a dog")}, options);
  const auto whole = nested->embed({std::string("a dog")}, quietly());
  ASSERT_TRUE(cut.ok() && whole.ok());
  const std::vector<float>& all = (*whole)[0].embedding;
  expect_near((*cut)[0].embedding, normalized({all.begin(), all.begin() + 8}), 1e-6f);
  options.dimensions = 33;
  EXPECT_THAT(nested->embed({std::string("a dog")}, options).status().message(), HasSubstr("have 32"));
}

TEST(Pooling, AModelIsServedForOneThing) {
  const auto embeds = load(embedding_config("bert_mean"));
  ASSERT_NE(embeds, nullptr);
  EXPECT_THAT(embeds->generate({std::string("a")}, {}, {.progress = false}).status().message(),
              HasSubstr("served for embeddings"));
  EXPECT_THAT(embeds->classify({std::string("a")}, quietly()).status().message(), HasSubstr("gives embeddings"));
  EngineConfig config = embedding_config("qwen3_reranker");  // a decoder without modules.json
  const auto generates = load(config);
  ASSERT_NE(generates, nullptr);
  EXPECT_THAT(generates->embed({std::string("a")}, quietly()).status().message(), HasSubstr("generates text"));
  config.runner = Runner::kPooling;
  const auto pools = load(config);
  ASSERT_NE(pools, nullptr);
  EXPECT_TRUE(pools->embed({std::string("a")}, quietly()).ok());
}

TEST(Pooling, WhatDoesNotGoTogetherIsRefusedByName) {
  const auto refusal = [](const char* name, Runner runner, Convert convert) {
    EngineConfig config = embedding_config(name);
    config.runner = runner;
    config.convert = convert;
    return LLM::create(config).status().message();
  };
  EXPECT_THAT(refusal("bert_mean", Runner::kGenerate, Convert::kAuto), HasSubstr("no head that generates"));
  EXPECT_THAT(refusal("bert_mean", Runner::kAuto, Convert::kClassify), HasSubstr("no head that could classify"));
  EXPECT_THAT(refusal("bert_classes", Runner::kAuto, Convert::kEmbed), HasSubstr("classifying head"));
  EXPECT_THAT(refusal("qwen3_reranker", Runner::kPooling, Convert::kNone), HasSubstr("without being converted"));
  EXPECT_THAT(refusal("qwen3_reranker", Runner::kGenerate, Convert::kEmbed),
              HasSubstr("makes no model that generates"));
}

TEST(Pooling, ModulesThatAreNotBuiltAreRefusedByName) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "quire_pooling_modules";
  fs::remove_all(folder);
  fs::copy(embedding_path("bert_mean"), folder, fs::copy_options::recursive);
  const auto refusal = [&](const char* file, std::string_view old, std::string_view replacement) {
    std::ifstream in(fs::path(embedding_path("bert_mean")) / file);
    std::ostringstream text;
    text << in.rdbuf();
    std::string changed = text.str();
    const size_t at = changed.find(old);
    EXPECT_NE(at, changed.npos);
    std::ofstream(folder / file) << changed.replace(at, old.size(), replacement);
    EngineConfig config = embedding_config("bert_mean");
    config.model = folder.string();
    const std::string message = LLM::create(config).status().message();
    std::ofstream(folder / file) << text.str();
    return message;
  };
  EXPECT_THAT(refusal("modules.json", "models.Normalize", "models.LSTM"), HasSubstr("\"LSTM\" is not built yet"));
  EXPECT_THAT(refusal("modules.json", "models.Normalize", "models.Dense"), HasSubstr("2_Normalize"));
  EXPECT_THAT(refusal("1_Pooling/config.json", "\"include_prompt\"", "\"pooling_mode\": \"best\", \"include_prompt\""),
              HasSubstr("\"best\" is not built yet"));
  EXPECT_THAT(refusal("modules.json", "1_Pooling\"", "9_Pooling\""), HasSubstr("9_Pooling"));
  EXPECT_THAT(refusal("modules.json", "[", "{"), HasSubstr("modules.json"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace quire
