// Guesses change no answer: whoever makes them, right or wrong, and however else the engine goes about its work,
// receipts are those of an engine that guesses nothing.
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/output.h"
#include "quire/llm.h"
#include "tests/runner/tiny_model.h"

namespace quire {
namespace {

using runner::tiny_path;

struct DraftVariant {
  const char* name;
  std::function<void(EngineConfig&)> set;
  bool predicts = false;  // requests bring predictions: their answers with some tokens changed, left out and put in
  bool preempts = false;  // must have happened, or the test shows nothing
  bool swaps = false;
  const char* only_of = nullptr;  // a head that fits this model alone; nullptr: any
};

// As much as there is to guess: the gain is another test's.
void guess(EngineConfig& c, SpeculativeMethod method) {
  c.speculative_config.method = method;
  c.speculative_config.always = true;
  if (method == SpeculativeMethod::kNgram) {
    c.speculative_config.prompt_lookup_min = 1;
    c.speculative_config.prompt_lookup_max = 4;
    c.speculative_config.num_speculative_tokens = 7;
  }
}
void ngram(EngineConfig& c) {
  guess(c, SpeculativeMethod::kNgram);
}
void suffix(EngineConfig& c) {
  guess(c, SpeculativeMethod::kSuffix);
}
// The same model knows what it would say itself, where nothing is drawn.
void same_model(EngineConfig& c) {
  guess(c, SpeculativeMethod::kDraftModel);
  c.speculative_config.model = c.model;
  c.speculative_config.num_speculative_tokens = 4;
}
void another_model(EngineConfig& c) {
  same_model(c);
  c.speculative_config.model = tiny_path(c.model.ends_with("/llama") ? "qwen2" : "llama");
}
std::string head_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/e2e/tiny_heads/" + name;
}
// Made for another model of the same sizes, or for this one, or out of its own checkpoint: it is right now and then.
void head(EngineConfig& c) {
  if (c.model.ends_with("_mtp")) {
    guess(c, SpeculativeMethod::kMtp);
  } else {
    guess(c, SpeculativeMethod::kEagle3);
    c.speculative_config.model = head_path("eagle3_whole_vocabulary");
  }
  c.speculative_config.num_speculative_tokens = 4;
}
void eagle(EngineConfig& c) {
  guess(c, SpeculativeMethod::kEagle);
  c.speculative_config.model = head_path("eagle_llama");
  c.speculative_config.num_speculative_tokens = 4;
}
void medusa(EngineConfig& c) {
  guess(c, SpeculativeMethod::kMedusa);
  c.speculative_config.model = head_path("medusa_few_tokens");
}
void dflash(EngineConfig& c) {
  guess(c, SpeculativeMethod::kDflash);
  c.speculative_config.model = head_path("dflash_llama");
}
void predictions(EngineConfig& c) {
  guess(c, SpeculativeMethod::kNone);
}

// Room for the largest request alone, so that the others are in each other's way.
void hardly_fits(EngineConfig& c) {
  c.block_size = 4;
  c.num_gpu_blocks_override = 22;
  c.watermark = 0;
}

const DraftVariant kDraftVariants[] = {
    {"ngram", ngram},
    {"suffix", suffix},
    {"predictions", predictions, true},
    {"both", suffix, true},
    {"by_gain", [](EngineConfig& c) { c.speculative_config.method = SpeculativeMethod::kSuffix; }, true},
    {"chunks_of_7", [](EngineConfig& c) { suffix(c), c.max_num_batched_tokens = 7; }, true},
    {"blocks_of_1", [](EngineConfig& c) { suffix(c), c.block_size = 1; }, true},
    {"blocks_of_3", [](EngineConfig& c) { ngram(c), c.block_size = 3; }, true},
    {"without_prefix_cache", [](EngineConfig& c) { suffix(c), c.enable_prefix_caching = false; }, true},
    {"same_model", same_model},
    {"another_model", another_model},
    {"suffixes_and_a_model",
     [](EngineConfig& c) {
       same_model(c);
       c.speculative_config.method = SpeculativeMethod::kSuffix;
     },
     true},
    {"a_model_by_gain", [](EngineConfig& c) { same_model(c), c.speculative_config.always = false; }},
    {"a_short_model_of_8_bits",
     [](EngineConfig& c) {
       same_model(c);
       c.speculative_config.quantization = Quantization::kInt8;
       c.speculative_config.max_model_len = 40;  // many an answer goes on beyond it
     }},
    {"a_model_in_chunks", [](EngineConfig& c) { same_model(c), c.max_num_batched_tokens = 7, c.block_size = 3; }},
    {"a_model_and_preempted",
     [](EngineConfig& c) {
       same_model(c), hardly_fits(c);
       c.preemption_mode = PreemptionMode::kSwap;
       c.swap_space = 0.01;
     },
     false, true, true},
    {"head", head},
    {"head_in_chunks", [](EngineConfig& c) { head(c), c.max_num_batched_tokens = 7, c.block_size = 3; }},
    {"head_of_8_bits", [](EngineConfig& c) { head(c), c.speculative_config.quantization = Quantization::kInt8; }},
    {"head_by_gain", [](EngineConfig& c) { head(c), c.speculative_config.always = false; }},
    {"head_and_preempted",
     [](EngineConfig& c) {
       head(c), hardly_fits(c);
       c.preemption_mode = PreemptionMode::kRecompute;
     },
     true, true},
    {"head_and_swapped",
     [](EngineConfig& c) {
       head(c), hardly_fits(c);
       c.preemption_mode = PreemptionMode::kSwap;
       c.swap_space = 0.01;
     },
     true, true, true},
    {"eagle", eagle, false, false, false, "llama"},
    {"medusa", medusa, false, false, false, "llama"},
    {"medusa_of_8_bits", [](EngineConfig& c) { medusa(c), c.speculative_config.quantization = Quantization::kInt8; },
     false, false, false, "llama"},
    {"medusa_in_chunks", [](EngineConfig& c) { medusa(c), c.max_num_batched_tokens = 7, c.block_size = 3; }, false,
     false, false, "llama"},
    {"dflash", dflash, false, false, false, "llama"},
    {"dflash_of_windows",
     [](EngineConfig& c) {
       dflash(c), c.speculative_config.num_speculative_tokens = 3;
       c.speculative_config.model = head_path("dflash_windows");
     },
     true, false, false, "llama"},
    {"dflash_in_chunks", [](EngineConfig& c) { dflash(c), c.max_num_batched_tokens = 7, c.block_size = 3; }, false,
     false, false, "llama"},
    {"dflash_by_gain", [](EngineConfig& c) { dflash(c), c.speculative_config.always = false; }, false, false, false,
     "llama"},
    {"dflash_and_preempted",
     [](EngineConfig& c) {
       dflash(c), hardly_fits(c);
       c.preemption_mode = PreemptionMode::kRecompute;
     },
     true, true, false, "llama"},
    {"dflash_and_swapped",
     [](EngineConfig& c) {
       dflash(c), hardly_fits(c);
       c.preemption_mode = PreemptionMode::kSwap;
       c.swap_space = 0.01;
     },
     true, true, true, "llama"},
    {"recompute",
     [](EngineConfig& c) {
       suffix(c), hardly_fits(c);
       c.preemption_mode = PreemptionMode::kRecompute;
     },
     true, true},
    {"swap",
     [](EngineConfig& c) {
       suffix(c), hardly_fits(c);
       c.preemption_mode = PreemptionMode::kSwap;
       c.swap_space = 0.01;
     },
     true, true, true},
    {"four_steps_ahead", [](EngineConfig& c) { suffix(c), c.num_scheduler_steps = 4; }, true},
    {"async", [](EngineConfig& c) { suffix(c), c.async_scheduling = true; }, true},
    {"async_and_preempted", [](EngineConfig& c) { suffix(c), hardly_fits(c), c.async_scheduling = true; }, true, true},
};

class Speculation : public testing::TestWithParam<std::string> {
 protected:
  // Where nobody drafts its states have no room for predictions.
  static bool is_recurrent() { return GetParam().starts_with("qwen3_5"); }
  static bool suits(const EngineConfig& changed) {
    return !is_recurrent() || changed.speculative_config.method != SpeculativeMethod::kNone;
  }

  using Requests = std::vector<std::pair<std::vector<TokenId>, SamplingParams>>;

  static EngineConfig config() {
    const std::string model = GetParam().ends_with("_mtp") ? head_path(GetParam()) : tiny_path(GetParam());
    return {.model = model, .skip_tokenizer_init = true, .num_gpu_blocks_override = 1024};
  }

  // Greedy and drawn, with and without all that looks at the tokens before.
  static Requests requests(int count) {
    Requests list;
    for (int i = 0; i < count; ++i) {
      std::vector<TokenId> prompt;
      for (int j = 0; j < 20 + 5 * (i % 4); ++j) prompt.push_back(10 + (j * 7) % 400);
      if (i % 3 == 1) prompt.push_back(30 + i);
      SamplingParams params{.temperature = i % 2 == 0 ? 0.0f : 1.0f,
                            .top_p = i % 4 == 1 ? 0.9f : 1.0f,
                            .repetition_penalty = i % 4 == 3 ? 1.2f : 1.0f,
                            .seed = 100 + static_cast<uint64_t>(i),
                            .max_tokens = 24 + i % 12,
                            .ignore_eos = true,
                            .deterministic = true};
      if (i % 8 == 6) params.frequency_penalty = 0.4f;
      if (i % 8 == 5) params.mirostat = 2;
      if (i % 8 == 4) params.bad_words_ids = {{12, 13}, {17}};
      if (i % 12 == 2) params.logprobs = 3;
      if (i % 12 == 7) params.prompt_logprobs = 1;
      if (i % 12 == 8) {  // ends in the middle of what was accepted
        params.min_tokens = 5;
        std::vector<TokenId> ends;
        for (TokenId id = 0; id < 400; id += 9) ends.push_back(id);
        params.stop_token_ids = ends;
      }
      if (i % 12 == 10) params.repetition_detection = RepetitionDetection{4, 1, 3};
      list.emplace_back(std::move(prompt), std::move(params));
    }
    return list;
  }

  struct Alone {
    std::string receipt;
    std::vector<TokenId> tokens;
    FinishReason finish = FinishReason::kNone;
  };
  // The attention sums over blocks, so their size is part of what the bits depend on.
  static std::vector<Alone> alone(const Requests& list, int32_t block_size) {
    EngineConfig plain = config();
    plain.block_size = block_size;
    auto llm = LLM::create(plain);
    EXPECT_TRUE(llm.ok()) << llm.status().message();
    std::vector<Alone> answers;
    for (const auto& [prompt, params] : list) {
      auto outputs = (*llm)->generate({prompt}, params, {.progress = false});
      EXPECT_TRUE(outputs.ok()) << outputs.status().message();
      const RequestOutput& one = outputs->front();
      answers.push_back({one.receipt, one.token_ids, one.finish_reason});
    }
    EXPECT_EQ((*llm)->engine().stats().num_drafts, 0);
    return answers;
  }

  // Now and then a token is another, missing, or one too many.
  static std::vector<TokenId> nearly(std::vector<TokenId> answer, std::mt19937& random) {
    std::vector<TokenId> out;
    for (const TokenId token : answer) {
      const auto chance = random() % 12;
      if (chance == 0) continue;
      if (chance == 1) out.push_back(static_cast<TokenId>(random() % 400));
      out.push_back(chance == 2 ? static_cast<TokenId>(random() % 400) : token);
    }
    return out;
  }
};

TEST_P(Speculation, ReceiptsAreThoseOfAnEngineThatGuessesNothing) {
  const Requests list = requests(32);
  std::map<int32_t, std::vector<Alone>> known;
  std::mt19937 random(20261125);
  for (const DraftVariant& variant : kDraftVariants) {
    if (variant.only_of != nullptr && GetParam() != variant.only_of) continue;
    SCOPED_TRACE(variant.name);
    EngineConfig changed = config();
    variant.set(changed);
    if (!suits(changed)) continue;
    // Two groups of layers hold a block each where others hold one.
    if (variant.preempts && GetParam().starts_with("gemma")) changed.num_gpu_blocks_override *= 2;
    // Blocks of 16 tokens whatever is asked for, and of each group of layers.
    if (variant.preempts && is_recurrent()) changed.num_gpu_blocks_override = 20;
    std::vector<Alone>& expected = known[changed.block_size];
    if (expected.empty()) expected = alone(list, changed.block_size);
    auto llm = LLM::create(changed);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    engine::Engine& engine = (*llm)->engine();
    // Twice: the second time the prefix cache is warm, and the answers have been seen.
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<engine::Completion>> running;
      for (size_t i = 0; i < list.size(); ++i) {
        engine::GenerationRequest request{.prompt = list[i].first, .params = list[i].second};
        if (variant.predicts && i % 3 != 0) request.prediction = nearly(expected[i].tokens, random);
        auto started = engine::Completion::start_one(engine, std::move(request));
        ASSERT_TRUE(started.ok()) << started.status().message();
        running.push_back(std::move(*started));
      }
      for (size_t i = 0; i < running.size(); ++i) {
        engine::OutputDelta whole;
        while (!running[i]->finished()) engine::append(whole, running[i]->take());
        EXPECT_EQ(whole.receipt, expected[i].receipt) << "request " << i << ", round " << round;
        EXPECT_EQ(whole.finish, expected[i].finish);
        EXPECT_LE(whole.num_predicted_tokens, static_cast<int32_t>(whole.tokens.size()));
      }
    }
    const engine::EngineStats stats = engine.stats();
    if (changed.speculative_config.always) {  // or the test shows nothing
      EXPECT_GT(stats.num_draft_tokens, 5);
      if (variant.predicts) {
        EXPECT_GT(stats.num_accepted_tokens, 10);
        EXPECT_GT(stats.num_draft_tokens - stats.num_accepted_tokens, 10);
      }
    }
    // A window gives blocks back, so that requests may never be in each other's way.
    const bool windowed = GetParam() == "mistral_swa" || is_recurrent();
    if (variant.preempts && !windowed) {
      EXPECT_GT(stats.num_preemptions, 0);
    }
    if (variant.swaps && !windowed) {
      EXPECT_GT(stats.num_swaps, 0);
    }
  }
}

// A guess at the answer's own tokens is never wrong, and steps are fewer by as many.
TEST_P(Speculation, AnAnswerThatIsPredictedTakesFewSteps) {
  if (is_recurrent()) GTEST_SKIP() << "drafts end with their block";
  Requests list = requests(2);
  const std::vector<Alone> expected = alone(list, 16);
  EngineConfig changed = config();
  predictions(changed);
  auto llm = LLM::create(changed);
  ASSERT_TRUE(llm.ok()) << llm.status().message();
  engine::Engine& engine = (*llm)->engine();
  for (size_t i = 0; i < list.size(); ++i) {
    for (const bool speculates : {false, true}) {
      const int64_t before = engine.stats().num_steps;
      auto started = engine::Completion::start_one(engine, {.prompt = list[i].first,
                                                            .params = list[i].second,
                                                            .prediction = expected[i].tokens,
                                                            .speculates = speculates});
      ASSERT_TRUE(started.ok()) << started.status().message();
      engine::OutputDelta whole;
      while (!(*started)->finished()) engine::append(whole, (*started)->take());
      EXPECT_EQ(whole.receipt, expected[i].receipt);
      EXPECT_EQ(whole.num_mispredicted_tokens, 0);
      const auto length = static_cast<int32_t>(whole.tokens.size());
      const int64_t steps = engine.stats().num_steps - before;
      if (speculates) {
        EXPECT_GE(whole.num_predicted_tokens, length - 2);
        EXPECT_LE(steps, 3);
      } else {
        EXPECT_EQ(whole.num_predicted_tokens, 0);
        EXPECT_GE(steps, length - 1);
      }
    }
  }
}

// Of a model that guesses what it would say itself nearly all is right, and its keys and values are kept: it computes a
// text once.
TEST_P(Speculation, AModelThatGuessesForItselfIsRight) {
  for (const float temperature : {0.0f, 1.0f}) {  // one that draws is guessed for with its own numbers
    SCOPED_TRACE(temperature);
    Requests list = requests(1);
    list.front().second.max_tokens = 30;
    list.front().second.temperature = temperature;
    if (temperature > 0) list.front().second.repetition_penalty = 1.1f;
    const std::vector<Alone> expected = alone(list, 16);
    EngineConfig changed = config();
    same_model(changed);
    auto llm = LLM::create(changed);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    for (int round = 0; round < 2; ++round) {
      auto found = (*llm)->generate({list.front().first}, list.front().second, {.progress = false});
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(found->front().receipt, expected.front().receipt);
    }
    const engine::EngineStats stats = (*llm)->engine().stats();
    EXPECT_GE(stats.num_accepted_tokens, 2 * (is_recurrent() ? 20 : 22));  // drafts end with their block
    EXPECT_LE(stats.num_draft_tokens - stats.num_accepted_tokens, 4);
  }
}

TEST_P(Speculation, SamplesOfOnePromptAreWhatTheirSeedsGiveAlone) {
  const std::vector<TokenId> prompt = requests(1).front().first;
  SamplingParams params{
      .n = 5, .temperature = 1.0f, .seed = 7, .max_tokens = 20, .ignore_eos = true, .deterministic = true};
  auto plain = LLM::create(config());
  ASSERT_TRUE(plain.ok());
  auto expected = (*plain)->generate({prompt}, params, {.progress = false});
  EngineConfig changed = config();
  ngram(changed);
  auto llm = LLM::create(changed);
  ASSERT_TRUE(llm.ok());
  for (int round = 0; round < 2; ++round) {
    auto found = (*llm)->generate({prompt}, params, {.progress = false});
    ASSERT_TRUE(found.ok()) << found.status().message();
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(found->front().outputs[i].receipt, expected->front().outputs[i].receipt) << "sample " << i;
    }
  }
  EXPECT_GT((*llm)->engine().stats().num_draft_tokens, 0);
}

TEST_P(Speculation, BeamsAreNotGuessedAhead) {
  const std::vector<TokenId> prompt = requests(1).front().first;
  EngineConfig changed = config();
  ngram(changed);
  auto llm = LLM::create(changed);
  ASSERT_TRUE(llm.ok());
  auto found = (*llm)->generate(
      {prompt}, {.max_tokens = 20, .ignore_eos = true, .use_beam_search = true, .beam_width = 3}, {.progress = false});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ((*llm)->engine().stats().num_drafts, 0);
}

// Rules by which an answer may be another than without guesses: those that say they repeat are not guessed for, greedy
// ones are what they are, and a seed gives the same again where as much is guessed.
TEST_P(Speculation, OtherRulesKeepGreedyAnswersAndThoseWithReceipts) {
  Requests list = requests(12);
  const std::vector<Alone> expected = alone(list, 16);
  for (const AcceptanceMethod method : {AcceptanceMethod::kRejection, AcceptanceMethod::kTypical}) {
    EngineConfig changed = config();
    same_model(changed);
    changed.speculative_config.acceptance.method = method;
    auto llm = LLM::create(changed);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    for (size_t i = 0; i < list.size(); ++i) {
      auto [prompt, params] = list[i];
      auto found = (*llm)->generate({prompt}, params, {.progress = false});
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(found->front().receipt, expected[i].receipt) << i;
    }
    EXPECT_EQ((*llm)->engine().stats().num_drafts, 0);
    for (size_t i = 0; i < list.size(); ++i) {
      auto [prompt, params] = list[i];
      params.deterministic = false;
      auto found = (*llm)->generate({prompt}, params, {.progress = false});
      ASSERT_TRUE(found.ok()) << found.status().message();
      if (params.greedy() || params.mirostat != 0) {
        EXPECT_EQ(found->front().token_ids, expected[i].tokens) << i;
      }
      auto again = (*llm)->generate({prompt}, params, {.progress = false});
      EXPECT_EQ(found->front().token_ids, again->front().token_ids) << i;
    }
    EXPECT_GT((*llm)->engine().stats().num_accepted_tokens, 150);
  }
}

// Answers of three tokens, of which two are guessed, beside those of an engine without: two samples of one
// distribution.
TEST(SpeculationRules, DrawnGuessesLeaveTheDistributionAsItIs) {
  const std::vector<TokenId> prompt = {3, 17, 44, 9, 21};
  std::map<std::vector<TokenId>, std::array<double, 2>> counts;
  for (const bool guesses : {false, true}) {
    EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 1024};
    if (guesses) {
      same_model(config);
      config.speculative_config.acceptance.method = AcceptanceMethod::kRejection;
    }
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    // Of biases the model that guesses knows nothing: it draws from another distribution.
    std::vector<std::pair<TokenId, float>> biases;
    for (TokenId id = 0; id < 512; id += 2) biases.emplace_back(id, 1.5f);
    for (uint64_t request = 0; request < 60; ++request) {
      auto found = (*llm)->generate({prompt},
                                    {.n = 64,
                                     .temperature = 0.7f,
                                     .top_k = 3,
                                     .seed = 1'000'000 * (guesses ? 2 : 1) + 1000 * request,
                                     .logit_bias = biases,
                                     .max_tokens = 3,
                                     .ignore_eos = true},
                                    {.progress = false});
      ASSERT_TRUE(found.ok()) << found.status().message();
      for (const auto& output : found->front().outputs) counts[output.token_ids][guesses ? 1 : 0] += 1;
    }
    const engine::EngineStats stats = (*llm)->engine().stats();
    if (guesses) {
      EXPECT_GT(stats.num_accepted_tokens, 500);
      EXPECT_GT(stats.num_draft_tokens - stats.num_accepted_tokens, 500);
    }
  }
  double chi_square = 0;
  size_t cells = 0;
  for (const auto& [tokens, both] : counts) {
    const double sum = both[0] + both[1];
    if (sum < 20) continue;
    chi_square += (both[0] - both[1]) * (both[0] - both[1]) / sum;
    ++cells;
  }
  EXPECT_GT(cells, 8u);
  // The 99.99 % point (Wilson and Hilferty, 1931).
  const auto k = static_cast<double>(cells);
  EXPECT_LT(chi_square, k * std::pow(1 - 2 / (9 * k) + 3.719 * std::sqrt(2 / (9 * k)), 3));
}

TEST(SpeculationModels, OfAnotherVocabularyAreRefused) {
  EngineConfig config{.model = tiny_path("llama"), .skip_tokenizer_init = true, .num_gpu_blocks_override = 64};
  config.speculative_config.method = SpeculativeMethod::kDraftModel;
  config.speculative_config.model = "/nowhere.gguf";
  EXPECT_THAT(LLM::create(config).status().message(), testing::HasSubstr("speculative_config: model: "));
  config.speculative_config.model.clear();
  EXPECT_THAT(LLM::create(config).status().message(), testing::HasSubstr("needs a model that drafts"));
}

// Windows in two sizes, latent attention, experts, learned positions, states.
INSTANTIATE_TEST_SUITE_P(Tiny, Speculation,
                         testing::Values("llama", "mistral_swa", "gemma3", "gemma4", "deepseek_v3_mtp", "qwen3_moe",
                                         "gpt2", "qwen3_5_mtp"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire
