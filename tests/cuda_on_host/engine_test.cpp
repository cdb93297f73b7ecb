// The whole engine on a card, or on the emulated one: what is uploaded, swapped and downloaded is where it is
// read.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <functional>

#include "engine/engine.h"
#include "engine/flight_recorder.h"
#include "quire/llm.h"
#include "tests/cards/needs_card.h"
#include "tests/runner/tiny_model.h"

namespace quire {
namespace {

class EngineOnCard : public cards::NeedsCard {};

struct Variant {
  const char* name;
  std::function<void(EngineConfig&)> set;
  bool preempts = false;  // must have happened, or the test shows nothing
  bool swaps = false;
};

// Room for the largest request alone, so that the others are in each other's way.
void tight(EngineConfig& config) {
  config.block_size = 4;
  config.max_num_batched_tokens = 128;  // so that all are admitted before the first wants more
  config.num_gpu_blocks_override = 28;
  config.watermark = 0;
}

const Variant kVariants[] = {
    {"together", [](EngineConfig&) {}},
    {"eager", [](EngineConfig& config) { config.enforce_eager = true; }},
    {"chunks_of_7_and_async",
     [](EngineConfig& config) {
       config.max_num_batched_tokens = 7;
       config.async_scheduling = true;
     }},
    {"recompute_and_async",
     [](EngineConfig& config) {
       tight(config);
       config.preemption_mode = PreemptionMode::kRecompute;
       config.async_scheduling = true;
     },
     true},
    {"swap_and_async",
     [](EngineConfig& config) {
       tight(config);
       config.async_scheduling = true;
       config.preemption_mode = PreemptionMode::kSwap;
       config.swap_space = 0.01;
     },
     true, true},
    {"swap_to_a_file",
     [](EngineConfig& config) {
       tight(config);
       config.preemption_mode = PreemptionMode::kSwap;
       config.swap_space = 0.01;
       config.swap_file = testing::TempDir();
     },
     true, true},
    {"recompute",
     [](EngineConfig& config) {
       tight(config);
       config.preemption_mode = PreemptionMode::kRecompute;
     },
     true},
};

EngineConfig on_card(const std::string& family) {
  EngineConfig config{.model = runner::tiny_path(family), .skip_tokenizer_init = true, .num_gpu_blocks_override = 64};
  config.device = DeviceChoice::cuda();
  config.threads = 2;
  // A step of so many tokens is run at start, and every size of sequences recorded, which takes an emulated device a
  // while.
  config.max_num_batched_tokens = 32;
  config.max_num_seqs = 8;
  return config;
}

// Steps of the past whose forward pass was replayed.
int64_t num_replayed(LLM& llm) {
  const boost::json::object steps = llm.engine().flight_recorder().steps(-1);
  int64_t count = 0;
  for (const boost::json::value& step : steps.at("steps").as_array()) count += step.at("replayed").as_bool() ? 1 : 0;
  return count;
}

std::vector<TokenId> tokens_of(engine::TokenStream& stream) {
  std::vector<TokenId> tokens;
  while (true) {
    const TokenEvent event = stream.take();
    EXPECT_TRUE(event.error.ok()) << event.error.message();
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    if (event.finish != FinishReason::kNone) return tokens;
  }
}

// Greedy answers as far as the reference's choice was clear.
TEST_F(EngineOnCard, AnswersAsTheReferenceDoesHoweverItGoesAboutIt) {
  const std::vector<runner::GoldenCase> cases = runner::read_golden("llama");
  std::vector<Prompt> prompts;
  for (const runner::GoldenCase& one : cases) prompts.emplace_back(one.prompt);
  const SamplingParams params{.temperature = 0, .max_tokens = 24, .ignore_eos = true, .prompt_logprobs = 0};
  for (const Variant& variant : kVariants) {
    SCOPED_TRACE(variant.name);
    EngineConfig config = on_card("llama");
    variant.set(config);
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    auto outputs = (*llm)->generate(prompts, params, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    for (size_t i = 0; i < cases.size(); ++i) {
      const RequestOutput& output = (*outputs)[i];
      EXPECT_TRUE(output.error.ok()) << output.error.message();
      ASSERT_EQ(output.token_ids.size(), cases[i].greedy.size());
      for (size_t step = 0; step < cases[i].greedy.size() && cases[i].greedy_margin[step] > 0.01; ++step) {
        ASSERT_EQ(output.token_ids[step], cases[i].greedy[step]) << "case " << i << " step " << step;
      }
      ASSERT_EQ(output.prompt_logprobs.size(), cases[i].prompt_logprobs.size());
      for (size_t p = 0; p < output.prompt_logprobs.size(); ++p) {
        EXPECT_NEAR(output.prompt_logprobs[p].chosen.logprob, cases[i].prompt_logprobs[p], 1e-3);
      }
    }
    const engine::EngineStats stats = (*llm)->engine().stats();
    if (variant.preempts) {
      EXPECT_GT(stats.num_preemptions, 0);
    }
    if (variant.swaps) {
      EXPECT_GT(stats.num_swaps, 0);
    }
  }
}

// A context that outgrows a recording's goes to the next; steps of more sequences than the largest are not recorded.
TEST_F(EngineOnCard, StepsThatOutgrowARecordingGoOn) {
  // The tiny model's shape, but for longer contexts.
  std::ifstream file(runner::tiny_path("llama") + "/config.json");
  boost::json::object shape = boost::json::parse(file).as_object();
  shape["max_position_embeddings"] = 2048;
  const std::string folder = testing::TempDir() + "longer_llama";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << boost::json::serialize(shape);
  std::vector<TokenId> longer(500);
  for (size_t i = 0; i < longer.size(); ++i) longer[i] = static_cast<TokenId>(3 + i % 50);
  const std::vector<Prompt> prompts = {Prompt(longer), Prompt(std::vector<TokenId>{5, 6, 7}),
                                       Prompt(std::vector<TokenId>{9, 8})};
  const SamplingParams params{.temperature = 0, .max_tokens = 20, .ignore_eos = true};
  std::vector<std::vector<std::vector<TokenId>>> answers;
  std::vector<int64_t> replayed;
  for (const int largest : {0, 8, 2}) {
    EngineConfig config = on_card("llama");
    config.model = folder;
    config.load_format = LoadFormat::kDummy;
    config.max_num_batched_tokens = 128;
    config.num_gpu_blocks_override = 256;
    config.enforce_eager = largest == 0;
    config.max_cudagraph_capture_size = largest;
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    auto outputs = (*llm)->generate(prompts, params, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    for (const RequestOutput& output : *outputs) EXPECT_EQ(output.token_ids.size(), 20u);
    answers.emplace_back();
    for (const RequestOutput& output : *outputs) answers.back().push_back(output.token_ids);
    replayed.push_back(num_replayed(**llm));
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
  EXPECT_EQ(replayed[0], 0);
  // The first step of a longer context is computed, and recorded; requests that arrive apart have some steps of their
  // own.
  EXPECT_GE(replayed[1], 14);
  EXPECT_LE(replayed[2], 5);
}

// With two steps under way a token is the next step's input before the host has seen it. Answers end at different
// times, some by a token, some are looked at by the host: the same come out.
TEST_F(EngineOnCard, StepsThatOverlapGiveTheSameTokens) {
  for (const char* family : {"llama", "gemma3", "mixtral", "gemma4"}) {
    SCOPED_TRACE(family);
    const std::vector<runner::GoldenCase> cases = runner::read_golden(family);
    std::vector<engine::GenerationRequest> requests(11);
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].prompt = cases[i % cases.size()].prompt;
      SamplingParams& one = requests[i].params;
      one = {.temperature = 0.3f * static_cast<float>(i % 4),
             .top_p = i % 3 == 0 ? 0.9f : 1.0f,
             .top_k = i % 5 == 0 ? 7 : 0,
             .seed = 40 + i,
             .max_tokens = static_cast<int32_t>(1 + i % 6),
             .ignore_eos = true};
      if (i % 4 == 1) one.stop_token_ids = {1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 100, 101, 102, 103};
      if (i == 6) one.max_tokens = 5;
      if (i == 6) one.min_tokens = 3;
      if (i == 6) one.stop_token_ids = {4, 9, 77};
      if (i == 9) one.repetition_penalty = 1.3f;
      if (i == 10) one.logprobs = 1;
    }
    std::vector<std::vector<std::vector<TokenId>>> answers;
    for (const int variant : {0, 1, 2}) {
      EngineConfig config = on_card(family);
      config.num_gpu_blocks_override = 256;
      config.async_scheduling = variant > 0;
      if (variant == 2) config.max_num_batched_tokens = 9;
      config.max_num_seqs = 5;  // some wait
      auto llm = LLM::create(config);
      ASSERT_TRUE(llm.ok()) << llm.status().message();
      std::vector<std::unique_ptr<engine::TokenStream>> streams;
      for (const engine::GenerationRequest& request : requests) {
        auto submitted = (*llm)->engine().submit(request);
        ASSERT_TRUE(submitted.ok()) << submitted.status().message();
        streams.push_back(std::move(submitted->front()));
      }
      answers.emplace_back();
      for (const auto& stream : streams) answers.back().push_back(tokens_of(*stream));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_FALSE(answers[0][i].empty());
      EXPECT_EQ(answers[0][i], answers[1][i]) << "prompt " << i;
      EXPECT_EQ(answers[0][i], answers[2][i]) << "prompt " << i << ", in chunks";
    }
  }
}

// Two kinds of layers with block tables of their own, samples that share and then copy blocks, a warm prefix cache.
TEST_F(EngineOnCard, SamplesSharePromptBlocksAndFindThemAgain) {
  const std::vector<runner::GoldenCase> cases = runner::read_golden("gemma3");
  auto llm = LLM::create(on_card("gemma3"));
  ASSERT_TRUE(llm.ok()) << llm.status().message();
  const SamplingParams params{.n = 3, .temperature = 0.8f, .seed = 5, .max_tokens = 6, .ignore_eos = true};
  std::vector<std::vector<std::vector<TokenId>>> rounds;
  for (int round = 0; round < 2; ++round) {
    auto outputs = (*llm)->generate({cases[2].prompt}, params, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    std::vector<std::vector<TokenId>>& answers = rounds.emplace_back();
    for (const CompletionOutput& output : outputs->front().outputs) answers.push_back(output.token_ids);
    ASSERT_EQ(answers.size(), 3u);
    if (round == 1) {
      EXPECT_GT(outputs->front().num_cached_tokens, 0);
    }
  }
  EXPECT_EQ(rounds[0], rounds[1]);
}

// A model that drafts has the card between the other's steps. One has states, and goes back behind wrong guesses.
TEST_F(EngineOnCard, AModelThatDraftsChangesNoAnswer) {
  for (const auto& [model, drafter] : {std::pair("llama", "llama"), {"llama", "llama3_rope"}, {"qwen3_5", "qwen3_5"}}) {
    SCOPED_TRACE(testing::Message() << drafter << " drafts for " << model);
    const bool itself = std::string_view(model) == drafter;
    std::vector<runner::GoldenCase> cases = runner::read_golden(model);
    cases.resize(2);
    std::vector<Prompt> prompts;
    for (const runner::GoldenCase& one : cases) prompts.emplace_back(one.prompt);
    EngineConfig config = on_card(model);
    config.enforce_eager = !itself;
    config.speculative_config.method = SpeculativeMethod::kDraftModel;
    config.speculative_config.model = runner::tiny_path(drafter);
    config.speculative_config.num_speculative_tokens = 3;
    config.speculative_config.always = true;
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    const SamplingParams greedy{.temperature = 0, .max_tokens = 12, .ignore_eos = true};
    auto outputs = (*llm)->generate(prompts, greedy, {.progress = false});
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    for (size_t i = 0; i < cases.size(); ++i) {
      const RequestOutput& output = (*outputs)[i];
      EXPECT_TRUE(output.error.ok()) << output.error.message();
      ASSERT_EQ(output.token_ids.size(), 12u);
      for (size_t step = 0; step < 12 && cases[i].greedy_margin[step] > 0.01; ++step)
        ASSERT_EQ(output.token_ids[step], cases[i].greedy[step]) << "case " << i << " step " << step;
    }
    const engine::EngineStats stats = (*llm)->engine().stats();
    EXPECT_GT(stats.num_draft_tokens, 0);
    if (itself) {
      EXPECT_GT(stats.num_accepted_tokens, stats.num_draft_tokens / 2);
    }
    const SamplingParams drawn{.temperature = 0.8f, .top_p = 0.9f, .seed = 5, .max_tokens = 4, .ignore_eos = true};
    auto answers = (*llm)->generate(prompts, drawn, {.progress = false});
    ASSERT_TRUE(answers.ok()) << answers.status().message();
    for (const RequestOutput& output : *answers) EXPECT_EQ(output.token_ids.size(), 4u);
  }
}

// Heads guess on the card what they guess on the CPU, out of the states of steps that are recorded and of those that
// are not.
TEST_F(EngineOnCard, HeadsGuessWhatTheyGuessOnTheCpu) {
  struct Case {
    SpeculativeMethod method;
    const char* head;
    bool recorded = true;
  };
  using enum SpeculativeMethod;
  for (const Case& one :
       {Case{kEagle, "eagle_llama"}, Case{kEagle3, "eagle3_llama"}, Case{kEagle3, "eagle3_llama", false},
        Case{kEagle3, "eagle3_whole_vocabulary"}, Case{kMtp, "deepseek_v3_mtp"}, Case{kMtp, "qwen3_5_mtp"},
        Case{kMedusa, "medusa_blocks"}, Case{kMedusa, "medusa_few_tokens"}, Case{kDflash, "dflash_windows"},
        Case{kDflash, "dflash_both_ways"}}) {
    SCOPED_TRACE(one.head);
    const std::string head = std::string(QUIRE_TEST_DATA) + "/e2e/tiny_heads/" + one.head;
    std::vector<Prompt> prompts;
    for (const TokenId first : {3, 40}) {
      std::vector<TokenId> ids;
      for (TokenId i = 0; i < 19; ++i) ids.push_back((first + 7 * i) % 60);
      prompts.emplace_back(ids);
    }
    // Tokens, and how many guesses there were and held.
    using Answer = std::tuple<std::vector<std::vector<TokenId>>, int64_t, int64_t>;
    const auto answer = [&](bool card) {
      EngineConfig config = on_card("llama");
      if (one.method == kMtp) config.model = head;
      if (!card) config.device = DeviceChoice::cpu();
      if (!card) config.activation_dtype = ActivationDType::kFloat32;
      config.enforce_eager = !one.recorded;
      config.speculative_config.method = one.method;
      if (one.method != kMtp) config.speculative_config.model = head;
      config.speculative_config.num_speculative_tokens = 3;
      config.speculative_config.always = true;
      Answer found;
      auto llm = LLM::create(config);
      EXPECT_TRUE(llm.ok()) << llm.status().message();
      if (!llm.ok()) return found;
      const SamplingParams greedy{.temperature = 0, .max_tokens = 9, .ignore_eos = true};
      for (const Prompt& prompt : prompts) {  // one by one: who comes to which step is no matter
        auto outputs = (*llm)->generate({prompt}, greedy, {.progress = false});
        EXPECT_TRUE(outputs.ok()) << outputs.status().message();
        if (!outputs.ok()) return found;
        EXPECT_TRUE(outputs->front().error.ok()) << outputs->front().error.message();
        std::get<0>(found).push_back(outputs->front().token_ids);
      }
      const engine::EngineStats stats = (*llm)->engine().stats();
      std::get<1>(found) = static_cast<int64_t>(stats.num_draft_tokens);
      std::get<2>(found) = static_cast<int64_t>(stats.num_accepted_tokens);
      return found;
    };
    const Answer found = answer(true);
    EXPECT_EQ(found, answer(false));
    EXPECT_GT(std::get<1>(found), 20);
  }
}

// Encoders that look both ways, decoders, and each kind of head.
TEST_F(EngineOnCard, VectorsAndScoresAreThoseOfTheReference) {
  const auto golden_of = [](const std::string& path) {
    std::ifstream file(path + "/golden.json");
    return boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  };
  for (const char* name : {"bert_mean", "modern_bert", "nomic_bert", "xlm_roberta", "qwen3_embedding", "bert_dense",
                           "bert_classes", "qwen2_classes", "llama_reward"}) {
    SCOPED_TRACE(name);
    EngineConfig config = on_card("llama");
    config.model = std::string(QUIRE_TEST_DATA) + "/embeddings/" + name;
    config.skip_tokenizer_init = false;
    const boost::json::value golden = golden_of(config.model);
    std::vector<Prompt> prompts;
    for (const boost::json::value& one : golden.at("texts").as_array()) {
      prompts.emplace_back(boost::json::value_to<std::vector<TokenId>>(one.at("ids")));
    }
    EngineConfig on_cpu = config;
    on_cpu.device = DeviceChoice::cpu();
    on_cpu.activation_dtype = ActivationDType::kFloat32;
    std::vector<std::vector<std::vector<float>>> found;
    for (const EngineConfig& each : {config, on_cpu}) {
      auto llm = LLM::create(each);
      ASSERT_TRUE(llm.ok()) << llm.status().message();
      PoolingOptions options;
      options.progress = false;
      std::vector<std::vector<float>>& numbers = found.emplace_back();
      if (golden.at("texts").at(0).as_object().contains("vector")) {
        auto outputs = (*llm)->embed(prompts, options);
        ASSERT_TRUE(outputs.ok()) << outputs.status().message();
        for (const EmbeddingOutput& output : *outputs) numbers.push_back(output.embedding);
      } else {
        auto outputs = (*llm)->classify(prompts, options);
        ASSERT_TRUE(outputs.ok()) << outputs.status().message();
        for (const ClassificationOutput& output : *outputs) numbers.push_back(output.probabilities);
      }
    }
    ASSERT_EQ(found[0].size(), prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_EQ(found[0][i].size(), found[1][i].size());
      for (size_t n = 0; n < found[0][i].size(); ++n)
        ASSERT_NEAR(found[0][i][n], found[1][i][n], 2e-5) << i << ", " << n;
    }
  }
}

// Without a head for it: by the logits of two tokens.
TEST_F(EngineOnCard, AModelThatGeneratesJudgesByTwoWords) {
  EngineConfig config = on_card("llama");
  config.model = std::string(QUIRE_TEST_DATA) + "/embeddings/qwen3_reranker";
  config.skip_tokenizer_init = false;
  config.convert = Convert::kClassify;
  PoolingOptions options;
  options.progress = false;
  const std::vector<std::pair<std::string, std::string>> pairs = {{"Where is the cat?", "The cat sat."},
                                                                  {"Who?", "Nobody at all, said the dog."}};
  std::vector<std::vector<float>> found;
  for (const DeviceChoice& device : {DeviceChoice::cuda(), DeviceChoice::cpu()}) {
    config.device = device;
    config.activation_dtype = device == DeviceChoice::cpu() ? ActivationDType::kFloat32 : ActivationDType::kAuto;
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    auto scores = (*llm)->score(pairs, options);
    ASSERT_TRUE(scores.ok()) << scores.status().message();
    found.push_back(*scores);
  }
  ASSERT_EQ(found[0].size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(found[0][i], found[1][i], 1e-3) << i;
}

TEST_F(EngineOnCard, SaysWhichDeviceItUsesAndRefusesWhatACardHasNot) {
  auto llm = LLM::create(on_card("llama"));
  ASSERT_TRUE(llm.ok()) << llm.status().message();
  EXPECT_TRUE((*llm)->engine().device_description().starts_with("cuda:0, ")) << (*llm)->engine().device_description();

  const auto refused = [](const std::function<void(EngineConfig&)>& set) {
    EngineConfig config = on_card("llama");
    set(config);
    const auto made = LLM::create(config);
    EXPECT_FALSE(made.ok());
    return made.ok() ? std::string() : made.status().message();
  };
  EXPECT_NE(refused([](EngineConfig& c) { c.device = DeviceChoice::cuda(7); }).find("no card 7"), std::string::npos);
  for (const AttentionBackend backend : {AttentionBackend::kFlashInfer, AttentionBackend::kFa3}) {
    const auto with = [&](auto change) {
      return refused([&](EngineConfig& c) {
        c.attention_backend = backend;
        change(c);
      });
    };
    EXPECT_NE(with([](EngineConfig& c) { c.device = DeviceChoice::cpu(); }).find("is for --device cuda"),
              std::string::npos);
    EXPECT_NE(with([](EngineConfig& c) { c.kv_cache_dtype = KvCacheDType::kFloat32; }).find("choose native"),
              std::string::npos);
    EXPECT_NE(with([](EngineConfig& c) { c.batch_invariant = true; }).find("batch_invariant"), std::string::npos);
  }
  EXPECT_NE(refused([](EngineConfig& c) { c.isa = Isa::kAvx2; }).find("--device cpu"), std::string::npos);
}

}  // namespace
}  // namespace quire
