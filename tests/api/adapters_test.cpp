// Adapters through the whole engine: an answer is the same bits whatever adapters its neighbours have, and adapters
// come and go under those who use them.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/output.h"
#include "quire/llm.h"
#include "tests/runner/tiny_model.h"

namespace quire {
namespace {

using runner::tiny_path;

std::string lora_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/e2e/lora/" + name;
}

// "": the model as it is.
const std::vector<std::string> kAdapters = {"", "qv", "all_linear", "rslora", "patterns", "embed_head", "some_layers"};

struct AdapterVariant {
  const char* name;
  std::function<void(EngineConfig&)> set;
};
const AdapterVariant kAdapterVariants[] = {
    {"together", [](EngineConfig&) {}},
    {"two_adapters_at_a_time", [](EngineConfig& c) { c.max_loras = 2; }},
    {"one_adapter_in_memory", [](EngineConfig& c) { c.max_loras = c.max_cpu_loras = 1; }},
    {"chunks_of_7", [](EngineConfig& c) { c.max_num_batched_tokens = 7; }},
    {"async", [](EngineConfig& c) { c.async_scheduling = true; }},
    // Texts are guessed with any adapter, a model's guesses are for those without.
    {"guesses_by_suffixes",
     [](EngineConfig& c) {
       c.speculative_config.method = SpeculativeMethod::kSuffix;
       c.speculative_config.always = true;
     }},
    {"guesses_of_a_model",
     [](EngineConfig& c) {
       c.speculative_config.method = SpeculativeMethod::kSuffix;
       c.speculative_config.model = c.model;
       c.speculative_config.always = true;
       c.max_loras = 3;
     }},
    {"guesses_of_a_head",
     [](EngineConfig& c) {
       c.speculative_config.method = SpeculativeMethod::kEagle3;
       c.speculative_config.model = std::string(QUIRE_TEST_DATA) + "/e2e/tiny_heads/eagle3_llama";
       c.speculative_config.always = true;
     }},
    {"preempted",
     [](EngineConfig& c) {
       c.num_gpu_blocks_override = 8;
       c.watermark = 0;
     }},
};

class AdaptedAnswers : public testing::Test {
 protected:
  static EngineConfig config() {
    return {.model = tiny_path("llama"),
            .skip_tokenizer_init = true,
            .num_gpu_blocks_override = 1024,
            .enable_lora = true,
            .max_loras = 8};
  }
  static std::unique_ptr<LLM> create(const EngineConfig& config, Drive drive = Drive::kOwnThread) {
    auto llm = LLM::create(config, drive);
    EXPECT_TRUE(llm.ok()) << llm.status().message();
    return std::move(*llm);
  }
  static void load_all(LLM& llm) {
    for (const std::string& name : kAdapters) {
      if (name.empty()) continue;
      const Status loaded = llm.load_lora({name, lora_path("llama/" + name)});
      ASSERT_TRUE(loaded.ok()) << loaded.message();
    }
  }
  static SamplingParams params(int i) {
    return {.temperature = i % 2 == 0 ? 0.0f : 0.9f,
            .seed = 100 + static_cast<uint64_t>(i),
            .max_tokens = 12 + i % 5,
            .ignore_eos = true,
            .deterministic = true};
  }
  // The same for all adapters, so that their cached blocks would be taken for each other's.
  static std::vector<TokenId> prompt(int i) {
    std::vector<TokenId> ids;
    for (int j = 0; j < 20 + 9 * (i % 3); ++j) ids.push_back(10 + (j * 7) % 400);
    return ids;
  }
  static std::string adapter_of(int i) { return kAdapters[static_cast<size_t>(i) % kAdapters.size()]; }
  static GenerateOptions with(const std::string& adapter) {
    GenerateOptions options{.progress = false, .lora = {}};
    if (!adapter.empty()) options.lora = LoraRequest{adapter, ""};
    return options;
  }
  static constexpr int kRequests = 21;

  // What each request gets from an engine that has its adapter alone, one request at a time.
  static std::vector<CompletionOutput> alone() {
    std::vector<CompletionOutput> all;
    EngineConfig plain = config();
    plain.enable_prefix_caching = false;
    for (int i = 0; i < kRequests; ++i) {
      plain.enable_lora = !adapter_of(i).empty();
      plain.max_loras = EngineConfig().max_loras;
      auto llm = create(plain);
      GenerateOptions options = with(adapter_of(i));
      if (options.lora) options.lora->path = lora_path("llama/" + adapter_of(i));
      auto outputs = llm->generate({prompt(i)}, params(i), options);
      EXPECT_TRUE(outputs.ok()) << outputs.status().message();
      all.push_back(outputs->front());
    }
    return all;
  }
};

TEST_F(AdaptedAnswers, AreTheSameBitsWhateverAdaptersTheirNeighboursHave) {
  const std::vector<CompletionOutput> expected = alone();
  for (int i = 1; i < static_cast<int>(kAdapters.size()); ++i)
    EXPECT_NE(expected[static_cast<size_t>(i)].receipt, expected[0].receipt) << kAdapters[static_cast<size_t>(i)];
  for (const AdapterVariant& variant : kAdapterVariants) {
    SCOPED_TRACE(variant.name);
    EngineConfig changed = config();
    variant.set(changed);
    auto llm = create(changed);
    load_all(*llm);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<engine::Completion>> running;
      for (int i = 0; i < kRequests; ++i) {
        auto started = engine::Completion::start_one(
            llm->engine(), {.prompt = prompt(i), .params = params(i), .adapter = adapter_of(i)});
        ASSERT_TRUE(started.ok()) << started.status().message();
        running.push_back(std::move(*started));
      }
      for (size_t i = 0; i < running.size(); ++i) {
        engine::OutputDelta whole;
        while (!running[i]->finished()) engine::append(whole, running[i]->take());
        EXPECT_TRUE(whole.error.ok()) << whole.error.message();
        EXPECT_EQ(whole.receipt, expected[i].receipt) << "request " << i << " with " << adapter_of(static_cast<int>(i));
        EXPECT_EQ(whole.tokens, expected[i].token_ids);
      }
    }
    EXPECT_EQ(llm->engine().stats().blocks_used, 0);
    if (changed.speculative_config.always) {
      EXPECT_GT(llm->engine().stats().num_draft_tokens, 20);
    }
    for (const AdapterInfo& adapter : llm->engine().adapters()) EXPECT_EQ(adapter.users, 0) << adapter.name;
  }
}

TEST_F(AdaptedAnswers, SeveralSamplesAndBeamsHaveTheirRequestsAdapter) {
  auto llm = create(config());
  load_all(*llm);
  SamplingParams several{
      .n = 3, .temperature = 1.0f, .seed = 7, .max_tokens = 8, .ignore_eos = true, .deterministic = true};
  const auto together = llm->generate({prompt(0)}, several, with("qv"));
  ASSERT_TRUE(together.ok()) << together.status().message();
  for (uint64_t i = 0; i < 3; ++i) {
    SamplingParams one = several;
    one.n = 1;
    one.seed = 7 + i;
    const auto single = llm->generate({prompt(0)}, one, with("qv"));
    ASSERT_TRUE(single.ok());
    EXPECT_EQ(together->front().outputs[i].receipt, single->front().receipt);
  }
  SamplingParams beams{.max_tokens = 6, .ignore_eos = true};
  beams.use_beam_search = true;
  beams.beam_width = 3;
  const auto plain = llm->generate({prompt(0)}, beams, with(""));
  const auto adapted = llm->generate({prompt(0)}, beams, with("all_linear"));
  ASSERT_TRUE(plain.ok() && adapted.ok());
  EXPECT_NE(plain->front().token_ids, adapted->front().token_ids);
  const auto again = llm->generate({prompt(0)}, beams, with("all_linear"));
  EXPECT_EQ(again->front().token_ids, adapted->front().token_ids);
}

// Of one base: what PEFT answers with each of them, alone and in one batch with the others and the base.
struct SeveralOfOneBase {
  std::string base;
  std::vector<std::string> adapters;
};

class AdaptersOfOtherBases : public AdaptedAnswers, public testing::WithParamInterface<SeveralOfOneBase> {};

TEST_P(AdaptersOfOtherBases, AnswerAsWithPeftAloneAndBesideEachOther) {
  EngineConfig own = config();
  own.model = tiny_path(GetParam().base);
  own.kv_cache_dtype = KvCacheDType::kFloat32;
  auto llm = create(own);
  std::map<std::string, std::vector<runner::GoldenCase>> golden = {{"", runner::read_golden(GetParam().base)}};
  for (const std::string& name : GetParam().adapters) {
    const Status loaded = llm->load_lora({name, lora_path(GetParam().base + "/" + name)});
    ASSERT_TRUE(loaded.ok()) << loaded.message();
    golden[name] = runner::read_golden(lora_path(GetParam().base + "/" + name));
  }
  struct Asked {
    std::string adapter;
    const runner::GoldenCase* expected;
    std::string receipt;
    std::unique_ptr<engine::Completion> running;
  };
  std::vector<Asked> all;
  for (size_t i = 0; i < golden[""].size(); ++i) {
    for (const auto& [name, cases] : golden) all.push_back({name, &cases[i], {}, {}});
  }
  const auto asked = [](const runner::GoldenCase& one) {
    return SamplingParams{.temperature = 0.0f,
                          .max_tokens = static_cast<int32_t>(one.greedy.size()),
                          .ignore_eos = true,
                          .prompt_logprobs = 0,
                          .deterministic = true};
  };
  const auto expect = [](const std::vector<TokenId>& tokens, const runner::GoldenCase& one) {
    for (size_t i = 0; i < one.greedy.size() && one.greedy_margin[i] > 1e-3; ++i) ASSERT_EQ(tokens[i], one.greedy[i]);
  };
  for (Asked& one : all) {
    SCOPED_TRACE(one.adapter);
    const auto outputs = llm->generate({one.expected->prompt}, asked(*one.expected), with(one.adapter));
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    const RequestOutput& output = outputs->front();
    expect(output.token_ids, *one.expected);
    for (size_t i = 0; i < one.expected->prompt_logprobs.size(); ++i)
      ASSERT_NEAR(output.prompt_logprobs[i].chosen.logprob, one.expected->prompt_logprobs[i], 1e-4) << i;
    one.receipt = output.receipt;
  }
  for (Asked& one : all) {
    auto started = engine::Completion::start_one(
        llm->engine(), {.prompt = one.expected->prompt, .params = asked(*one.expected), .adapter = one.adapter});
    ASSERT_TRUE(started.ok()) << started.status().message();
    one.running = std::move(*started);
  }
  for (Asked& one : all) {
    SCOPED_TRACE(one.adapter);
    engine::OutputDelta whole;
    while (!one.running->finished()) engine::append(whole, one.running->take());
    EXPECT_EQ(whole.receipt, one.receipt);
    expect(whole.tokens, *one.expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, AdaptersOfOtherBases,
                         testing::Values(SeveralOfOneBase{"deepseek_v2", {"kv_b", "latent"}},
                                         SeveralOfOneBase{"deepseek_v3", {"latent", "stacks"}},
                                         SeveralOfOneBase{"qwen2", {"tokens", "embed_head", "all_linear"}},
                                         SeveralOfOneBase{"mixtral", {"stacks", "old_stacks", "all_linear"}}),
                         [](const auto& test) { return test.param.base; });

// Longrope turns keys by the length of the whole prompt, the virtual tokens of a soft prompt among it: a prompt within
// the trained length and one beyond it share no keys, whatever of them the client sent.
TEST(SoftPromptsOfLongRope, AnswersDoNotDependOnWhatThePrefixCacheHas) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "quire-long-soft-prompt";
  std::filesystem::create_directories(folder);
  constexpr int kVirtual = 20, kHidden = 32;
  std::ofstream(folder / "adapter_config.json")
      << R"({"peft_type":"PROMPT_TUNING","task_type":"CAUSAL_LM","num_virtual_tokens":20,"token_dim":32,"num_layers":2,
            "num_transformer_submodules":1,"num_attention_heads":4})";
  std::vector<float> rows(kVirtual * kHidden);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = 0.1f * static_cast<float>((i * 7919) % 13) - 0.6f;
  std::string header = R"({"prompt_embeddings":{"dtype":"F32","shape":[20,32],"data_offsets":[0,2560]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header;
  file.append(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float));
  std::ofstream(folder / "adapter_model.safetensors", std::ios::binary) << file;

  EngineConfig config{.model = tiny_path("phi3_longrope"),
                      .skip_tokenizer_init = true,
                      .block_size = 4,
                      .num_gpu_blocks_override = 256,
                      .enable_prompt_adapter = true};
  std::vector<TokenId> prompt;
  for (int i = 0; i < 20; ++i) prompt.push_back(3 + (i * 37) % 60);
  const std::vector<TokenId> shorter(prompt.begin(), prompt.begin() + 10);  // 30 of 32 tokens with the soft prompt
  std::vector<std::string> receipts;
  for (const bool warm : {false, true}) {
    auto llm = LLM::create(config);
    ASSERT_TRUE(llm.ok()) << llm.status().message();
    GenerateOptions options{.progress = false};
    options.lora = LoraRequest{"soft", folder.string()};
    const SamplingParams params{.temperature = 0, .max_tokens = 6, .ignore_eos = true, .deterministic = true};
    if (warm) {
      ASSERT_TRUE((*llm)->generate({shorter}, params, options).ok());
    }
    auto outputs = (*llm)->generate({prompt}, params, options);
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    receipts.push_back(outputs->front().receipt);
  }
  EXPECT_EQ(receipts[0], receipts[1]);
}

class SoftPrompts : public AdaptedAnswers, public testing::WithParamInterface<std::string> {};

TEST_P(SoftPrompts, AnswersAndLogprobsAreThoseOfPeft) {
  const std::string family = GetParam().substr(0, GetParam().find('/'));
  EngineConfig own = config();
  own.model = tiny_path(family);
  own.kv_cache_dtype = KvCacheDType::kFloat32;
  own.enable_prompt_adapter = true;
  auto llm = create(own);
  const Status loaded = llm->load_lora({"soft", lora_path(GetParam())});
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  for (const runner::GoldenCase& one : runner::read_golden(lora_path(GetParam()))) {
    SamplingParams asked{.temperature = 0.0f,
                         .max_tokens = static_cast<int32_t>(one.greedy.size()),
                         .ignore_eos = true,
                         .prompt_logprobs = 0};
    // The second time the soft prompt's blocks are found.
    for (int round = 0; round < 2; ++round) {
      const auto outputs = llm->generate({one.prompt}, asked, with("soft"));
      ASSERT_TRUE(outputs.ok()) << outputs.status().message();
      const RequestOutput& output = outputs->front();
      ASSERT_EQ(output.prompt_logprobs.size(), one.prompt_logprobs.size());
      for (size_t i = 0; i < one.prompt_logprobs.size(); ++i)
        ASSERT_NEAR(output.prompt_logprobs[i].chosen.logprob, one.prompt_logprobs[i], 1e-4) << i;
      for (size_t i = 0; i < one.greedy.size() && one.greedy_margin[i] > 1e-3; ++i)
        ASSERT_EQ(output.token_ids[i], one.greedy[i]) << "step " << i;
      EXPECT_LE(output.num_cached_tokens, static_cast<int32_t>(one.prompt.size()));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tiny, SoftPrompts,
                         testing::Values("llama/prefix_tuning", "llama/prompt_tuning", "llama/prompt_tuning_20",
                                         "qwen2/prompt_tuning", "opt/prompt_tuning", "gemma2/prompt_tuning",
                                         "gemma3/prompt_tuning"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

TEST_F(AdaptedAnswers, SoftPromptsStandBesideLoraInOneBatchAndTheirIdsMeanNothing) {
  EngineConfig own = config();
  own.enable_prompt_adapter = true;
  auto llm = create(own);
  load_all(*llm);
  ASSERT_TRUE(llm->load_lora({"soft", lora_path("llama/prompt_tuning")}).ok());
  SamplingParams penalised = params(0);
  penalised.repetition_penalty = 1.5f;
  const auto ask = [&](const std::string& adapter, const SamplingParams& asked) {
    auto started =
        engine::Completion::start_one(llm->engine(), {.prompt = prompt(0), .params = asked, .adapter = adapter});
    EXPECT_TRUE(started.ok()) << started.status().message();
    return std::move(*started);
  };
  const auto finish = [](engine::Completion& one) {
    engine::OutputDelta whole;
    while (!one.finished()) engine::append(whole, one.take());
    return whole.receipt;
  };
  std::vector<std::string> alone;
  for (const char* adapter : {"soft", "qv", ""}) alone.push_back(finish(*ask(adapter, penalised)));
  std::vector<std::unique_ptr<engine::Completion>> running;
  for (const char* adapter : {"soft", "qv", "", "soft", "qv", ""}) running.push_back(ask(adapter, penalised));
  for (size_t i = 0; i < running.size(); ++i) EXPECT_EQ(finish(*running[i]), alone[i % 3]) << i;
  EXPECT_NE(alone[0], alone[2]);
}

// Its rows' lengths are taken of the base's weights, by the thread that reads it, while the others compute steps.
TEST_F(AdaptedAnswers, DoraIsReadWhileStepsAreComputed) {
  auto llm = create(config());
  const Status first = llm->load_lora({"dora", lora_path("llama/dora")});
  ASSERT_TRUE(first.ok()) << first.message();
  std::atomic<bool> stop{false};
  std::thread loader([&] {
    while (!stop) {
      const Status loaded = llm->load_lora({"dora", lora_path("llama/dora")}, /*replace=*/true);
      EXPECT_TRUE(loaded.ok()) << loaded.message();
    }
  });
  SamplingParams asked = params(0);
  asked.max_tokens = 60;
  std::string receipt;
  for (int round = 0; round < 12; ++round) {
    const auto outputs = llm->generate({prompt(0)}, asked, with("dora"));
    EXPECT_TRUE(outputs.ok()) << outputs.status().message();
    if (!outputs.ok()) break;
    if (round == 0) receipt = outputs->front().receipt;
    EXPECT_EQ(outputs->front().receipt, receipt);
  }
  stop = true;
  loader.join();
}

TEST_F(AdaptedAnswers, AnotherVersionUnderTheSameNameFindsNoneOfTheOldOnesBlocks) {
  auto llm = create(config());
  const auto ask = [&](const std::string& adapter) {
    auto outputs = llm->generate({prompt(0)}, params(0), with(adapter));
    EXPECT_TRUE(outputs.ok()) << outputs.status().message();
    return std::move(outputs->front());
  };
  ASSERT_TRUE(llm->load_lora({"one", lora_path("llama/qv")}).ok());
  ASSERT_TRUE(llm->load_lora({"other", lora_path("llama/all_linear")}).ok());
  const RequestOutput first = ask("one");
  EXPECT_GT(ask("one").num_cached_tokens, 0) << "of itself it finds them";
  const RequestOutput expected = ask("other");
  EXPECT_FALSE(llm->load_lora({"one", lora_path("llama/all_linear")}).ok()) << "the name is taken";
  ASSERT_TRUE(llm->load_lora({"one", lora_path("llama/all_linear")}, /*replace=*/true).ok());
  const RequestOutput replaced = ask("one");
  EXPECT_EQ(replaced.num_cached_tokens, 0);
  EXPECT_EQ(replaced.receipt, expected.receipt);
  EXPECT_NE(replaced.receipt, first.receipt);
}

TEST_F(AdaptedAnswers, WhoUsesAnAdapterKeepsItWhenItsNameGoes) {
  auto llm = create(config());
  ASSERT_TRUE(llm->load_lora({"one", lora_path("llama/rslora")}).ok());
  SamplingParams long_answer = params(0);
  long_answer.max_tokens = 200;
  const auto expected = llm->generate({prompt(0)}, long_answer, with("one"));
  ASSERT_TRUE(expected.ok());
  auto started =
      engine::Completion::start_one(llm->engine(), {.prompt = prompt(0), .params = long_answer, .adapter = "one"});
  ASSERT_TRUE(started.ok());
  engine::OutputDelta whole = (*started)->take();
  ASSERT_TRUE(llm->unload_lora("one").ok());
  EXPECT_FALSE(llm->unload_lora("one").ok());
  EXPECT_FALSE(llm->generate({prompt(0)}, params(0), with("one")).ok()) << "nobody finds it any more";
  while (!(*started)->finished()) engine::append(whole, (*started)->take());
  EXPECT_EQ(whole.receipt, expected->front().receipt);
}

TEST_F(AdaptedAnswers, AnAdapterThatIsNotKnownIsToldAtOnce) {
  auto llm = create(config());
  const auto unknown = llm->generate({prompt(0)}, params(0), with("nobody"));
  EXPECT_EQ(unknown.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(unknown.status().param(), "model");
  const Status unfit = llm->load_lora({"g", lora_path("gpt2/qv")});
  EXPECT_THAT(unfit.message(), testing::HasSubstr("another model"));
  EXPECT_TRUE(llm->engine().adapters().empty());
  EngineConfig off = config();
  off.enable_lora = false;
  off.max_loras = EngineConfig().max_loras;
  auto plain = create(off);
  EXPECT_EQ(plain->generate({prompt(0)}, params(0), with("qv")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(plain->load_lora({"qv", lora_path("llama/qv")}).code(), StatusCode::kUnimplemented);
}

TEST_F(AdaptedAnswers, TheFolderOfAdaptersIsLookedIntoByNameAloneAndLeadsNowhereElse) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / "adapters_of_a_folder";
  fs::remove_all(folder);
  fs::create_directories(folder);
  fs::copy(lora_path("llama/qv"), folder / "mine", fs::copy_options::recursive);
  fs::create_directory_symlink(lora_path("llama/all_linear"), folder / "link");
  EngineConfig with_folder = config();
  with_folder.lora_dir = folder.string();
  auto llm = create(with_folder);
  const auto mine = llm->generate({prompt(0)}, params(0), with("mine"));
  ASSERT_TRUE(mine.ok()) << mine.status().message();
  ASSERT_TRUE(llm->load_lora({"qv", lora_path("llama/qv")}).ok());
  EXPECT_EQ(mine->front().token_ids, llm->generate({prompt(0)}, params(0), with("qv"))->front().token_ids);
  const std::string absolute = lora_path("llama/all_linear");
  for (const std::string& name :
       {std::string("link"), std::string(".."), std::string("."), std::string("../llama"), std::string("mine/../mine"),
        absolute, std::string("mine\0x", 6), std::string("no")}) {
    EXPECT_EQ(llm->generate({prompt(0)}, params(0), with(name)).status().code(), StatusCode::kNotFound) << name;
    EXPECT_FALSE(llm->engine().load_adapter_from_folder("new", name).ok()) << name;
  }
  EXPECT_TRUE(llm->engine().load_adapter_from_folder("new", "mine").ok());
  // What is wrong with the files is for the log: it names them.
  fs::create_directories(folder / "broken");
  const auto broken = llm->generate({prompt(0)}, params(0), with("broken"));
  ASSERT_TRUE(broken.ok());
  EXPECT_EQ(broken->front().finish_reason, FinishReason::kError);
  EXPECT_THAT(broken->front().error.message(), testing::HasSubstr("cannot be loaded"));
  EXPECT_THAT(broken->front().error.message(), testing::Not(testing::HasSubstr(folder.string())));
  fs::remove_all(folder);
}

TEST_F(AdaptedAnswers, WhoMakesTheStepsWaitsForAdaptersInThem) {
  auto llm = create(config(), Drive::kCaller);
  ASSERT_TRUE(llm->load_lora({"qv", lora_path("llama/qv")}).ok());
  RequestOptions options;
  options.lora = LoraRequest{"qv", ""};
  ASSERT_TRUE(llm->add_request("a", prompt(0), params(0), options).ok());
  ASSERT_TRUE(llm->add_request("b", prompt(1), params(1), {}).ok());
  std::map<std::string, std::vector<TokenId>> answers;
  for (int steps = 0; llm->has_unfinished(); ++steps) {
    ASSERT_LT(steps, 1000);
    auto outputs = llm->step();
    ASSERT_TRUE(outputs.ok()) << outputs.status().message();
    for (const StepOutput& output : *outputs) {
      for (const CompletionUpdate& update : output.outputs) {
        auto& tokens = answers[output.request_id];
        tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
      }
    }
  }
  auto own = create(config());
  ASSERT_TRUE(own->load_lora({"qv", lora_path("llama/qv")}).ok());
  EXPECT_EQ(answers["a"], own->generate({prompt(0)}, params(0), with("qv"))->front().token_ids);
  EXPECT_EQ(answers["b"], own->generate({prompt(1)}, params(1), with(""))->front().token_ids);
}

// Adapters are loaded, replaced and unloaded under requests for them: each answer is one of those that its adapter's
// versions give, requests that find no adapter are told so, and nothing is left behind.
TEST_F(AdaptedAnswers, AStormOfLoadsAndUnloadsDisturbsNobody) {
  EngineConfig tight = config();
  tight.max_loras = 2;
  tight.max_cpu_loras = 3;
  auto llm = create(tight);
  load_all(*llm);
  std::map<std::string, std::vector<std::string>> expected;  // receipts by the name: of each of its versions
  for (const std::string& name : kAdapters)
    expected[name] = {llm->generate({prompt(0)}, params(0), with(name))->front().receipt};
  expected["some_layers"].push_back(expected["qv"].front());  // it is replaced by qv's files
  std::atomic<bool> stop{false};
  std::thread operators([&] {
    for (int i = 0; !stop; ++i) {
      const std::string name = i % 2 == 0 ? "patterns" : "rslora";
      EXPECT_TRUE(llm->unload_lora(name).ok());
      EXPECT_TRUE(llm->load_lora({name, lora_path("llama/" + name)}).ok());
      EXPECT_TRUE(llm->load_lora({"some_layers", lora_path(i % 3 == 0 ? "llama/qv" : "llama/some_layers")}, true).ok());
    }
  });
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = kAdapters[static_cast<size_t>(client + i) % kAdapters.size()];
        const auto outputs = llm->generate({prompt(0)}, params(0), with(name));
        if (!outputs.ok()) {
          EXPECT_EQ(outputs.status().code(), StatusCode::kNotFound) << outputs.status().message();
          continue;
        }
        if (outputs->front().finish_reason == FinishReason::kError) {  // it was unloaded before it was read
          EXPECT_EQ(outputs->front().error.code(), StatusCode::kNotFound) << outputs->front().error.message();
          continue;
        }
        EXPECT_THAT(expected[name], testing::Contains(outputs->front().receipt)) << name;
        ++answered;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  stop = true;
  operators.join();
  EXPECT_GT(answered, 60);
  EXPECT_EQ(llm->engine().stats().blocks_used, 0);
  for (const AdapterInfo& adapter : llm->engine().adapters()) EXPECT_EQ(adapter.users, 0) << adapter.name;
}

}  // namespace
}  // namespace quire
