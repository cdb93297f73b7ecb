// Adapters on a card, or on the emulated one, through the whole engine: PEFT's answers, and the same bits whatever
// adapters the neighbours have, from steps that are replayed and that are not, while adapters come and go.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <functional>
#include <map>

#include "engine/engine.h"
#include "engine/flight_recorder.h"
#include "engine/output.h"
#include "quire/llm.h"
#include "tests/cards/needs_card.h"
#include "tests/runner/tiny_model.h"

namespace quire {
namespace {

std::string lora_path(const std::string& name) {
  return std::string(QUIRE_TEST_DATA) + "/e2e/lora/" + name;
}

EngineConfig adapted_on_card(const std::string& family) {
  EngineConfig config{.model = runner::tiny_path(family), .skip_tokenizer_init = true, .num_gpu_blocks_override = 256};
  config.device = DeviceChoice::cuda();
  config.threads = 2;
  config.max_num_batched_tokens = 64;
  config.max_num_seqs = 8;
  config.kv_cache_dtype = KvCacheDType::kFloat32;
  config.enable_lora = true;
  config.max_loras = 8;
  return config;
}

struct Steps {
  int64_t all = 0;
  int64_t replayed = 0;
};
Steps steps_of(LLM& llm) {
  Steps count;
  const boost::json::object steps = llm.engine().flight_recorder().steps(-1);
  for (const boost::json::value& step : steps.at("steps").as_array()) {
    ++count.all;
    count.replayed += step.at("replayed").as_bool() ? 1 : 0;
  }
  return count;
}

struct Asked {
  std::string adapter;  // "": none
  std::vector<TokenId> prompt;
  SamplingParams params;
};

// One after the other, or all at once.
std::vector<engine::OutputDelta> answers_of(LLM& llm, const std::vector<Asked>& all, bool together) {
  std::vector<std::unique_ptr<engine::Completion>> running(all.size());
  std::vector<engine::OutputDelta> answers(all.size());
  const auto start = [&](size_t i) {
    auto started = engine::Completion::start_one(
        llm.engine(), {.prompt = all[i].prompt, .params = all[i].params, .adapter = all[i].adapter});
    EXPECT_TRUE(started.ok()) << started.status().message();
    if (started.ok()) running[i] = std::move(*started);
  };
  const auto finish = [&](size_t i) {
    if (running[i] == nullptr) return;
    while (!running[i]->finished()) engine::append(answers[i], running[i]->take());
    EXPECT_TRUE(answers[i].error.ok()) << answers[i].error.message();
  };
  for (size_t i = 0; i < all.size(); ++i) {
    start(i);
    if (!together) finish(i);
  }
  for (size_t i = 0; i < all.size() && together; ++i) finish(i);
  return answers;
}

class AdaptersOnCard : public cards::NeedsCard {
 protected:
  static std::unique_ptr<LLM> create(const EngineConfig& config) {
    auto llm = LLM::create(config);
    EXPECT_TRUE(llm.ok()) << llm.status().message();
    return std::move(*llm);
  }
  static void load(LLM& llm, const std::string& family, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const Status loaded = llm.load_lora({name, lora_path(family + "/" + name)});
      ASSERT_TRUE(loaded.ok()) << loaded.message();
    }
  }
};

struct CardFamily {
  std::string base;
  std::vector<std::string> adapters;
};
const std::vector<CardFamily> kCardFamilies = {
    {"llama", {"qv", "all_linear", "embed_head", "dora", "dora_embed", "tokens"}},
    {"mixtral", {"all_linear", "stacks"}},
    {"deepseek_v2", {"kv_b", "latent"}},
};

TEST_F(AdaptersOnCard, AnswerAsPeftDoesBesideEachOtherAndTheBase) {
  for (const CardFamily& family : kCardFamilies) {
    SCOPED_TRACE(family.base);
    auto llm = create(adapted_on_card(family.base));
    ASSERT_NO_FATAL_FAILURE(load(*llm, family.base, family.adapters));
    std::vector<Asked> asked;
    std::vector<runner::GoldenCase> expected;
    std::vector<std::string> names = {""};
    names.insert(names.end(), family.adapters.begin(), family.adapters.end());
    for (const std::string& name : names) {
      const auto cases = runner::read_golden(name.empty() ? family.base : lora_path(family.base + "/" + name));
      for (size_t i = 0; i < std::min<size_t>(cases.size(), 2); ++i) {
        expected.push_back(cases[i]);
        asked.push_back({name,
                         cases[i].prompt,
                         {.temperature = 0,
                          .max_tokens = static_cast<int32_t>(cases[i].greedy.size()),
                          .ignore_eos = true,
                          .prompt_logprobs = 0}});
      }
    }
    const std::vector<engine::OutputDelta> answers = answers_of(*llm, asked, /*together=*/true);
    for (size_t i = 0; i < answers.size(); ++i) {
      SCOPED_TRACE("case " + std::to_string(i) + " with " + asked[i].adapter);
      const runner::GoldenCase& one = expected[i];
      ASSERT_EQ(answers[i].tokens.size(), one.greedy.size());
      for (size_t t = 0; t < one.greedy.size() && one.greedy_margin[t] > 1e-3; ++t)
        ASSERT_EQ(answers[i].tokens[t], one.greedy[t]) << "step " << t;
      ASSERT_EQ(answers[i].prompt_logprobs.size(), one.prompt_logprobs.size());
      for (size_t p = 0; p < one.prompt_logprobs.size(); ++p)
        ASSERT_NEAR(answers[i].prompt_logprobs[p].chosen.logprob, one.prompt_logprobs[p], 1e-4) << "position " << p;
    }
    for (const AdapterInfo& adapter : llm->engine().adapters()) EXPECT_EQ(adapter.users, 0) << adapter.name;
    EXPECT_EQ(llm->engine().stats().blocks_used, 0);
  }
}

struct CardVariant {
  const char* name;
  std::function<void(EngineConfig&)> set;
  bool replays = true;
};
const CardVariant kCardVariants[] = {
    {"together", [](EngineConfig&) {}},
    {"eager", [](EngineConfig& c) { c.enforce_eager = true; }, false},
    {"async", [](EngineConfig& c) { c.async_scheduling = true; }},
    {"chunks_of_7_and_async",
     [](EngineConfig& c) {
       c.max_num_batched_tokens = 7;
       c.async_scheduling = true;
     }},
    {"two_adapters_at_a_time_in_memory", [](EngineConfig& c) { c.max_loras = c.max_cpu_loras = 2; }},
};

// With the sums of products in one order, whatever stands beside a row.
TEST_F(AdaptersOnCard, AnAnswerIsTheSameBitsAloneAndAmongOthers) {
  const std::vector<std::string> adapters = {"", "qv", "all_linear", "rslora", "patterns", "embed_head", "dora"};
  std::vector<Asked> asked;
  for (int i = 0; i < 14; ++i) {
    Asked one{.adapter = adapters[static_cast<size_t>(i) % adapters.size()], .prompt = {}, .params = {}};
    for (int j = 0; j < 12 + 9 * (i % 3); ++j) one.prompt.push_back(10 + (j * 7) % 400);
    one.params = {.temperature = i % 2 == 0 ? 0.0f : 0.9f,
                  .seed = 100 + static_cast<uint64_t>(i),
                  .max_tokens = 8 + i % 5,
                  .ignore_eos = true,
                  .deterministic = true};
    if (i % 5 == 3) one.params.repetition_penalty = 1.2f;
    if (i == 4) one.params.allowed_token_ids = std::vector<TokenId>{5, 6, 7, 8, 9, 10, 11, 300};
    asked.push_back(std::move(one));
  }
  const std::vector<std::string> named(adapters.begin() + 1, adapters.end());
  std::vector<engine::OutputDelta> alone;
  for (const CardVariant& variant : kCardVariants) {
    SCOPED_TRACE(variant.name);
    EngineConfig config = adapted_on_card("llama");
    config.batch_invariant = true;
    config.enable_prefix_caching = false;
    if (alone.empty()) {
      auto llm = create(config);
      ASSERT_NO_FATAL_FAILURE(load(*llm, "llama", named));
      alone = answers_of(*llm, asked, /*together=*/false);
    }
    config.enable_prefix_caching = true;
    variant.set(config);
    auto llm = create(config);
    ASSERT_NO_FATAL_FAILURE(load(*llm, "llama", named));
    // Once more with a warm prefix cache: an emulated device takes its time.
    const int rounds = &variant == &kCardVariants[0] ? 2 : 1;
    for (int round = 0; round < rounds; ++round) {
      const std::vector<engine::OutputDelta> answers = answers_of(*llm, asked, /*together=*/true);
      for (size_t i = 0; i < asked.size(); ++i) {
        EXPECT_EQ(answers[i].tokens, alone[i].tokens) << "request " << i << " with " << asked[i].adapter;
        EXPECT_EQ(answers[i].receipt, alone[i].receipt) << "request " << i << " with " << asked[i].adapter;
      }
    }
    EXPECT_EQ(steps_of(*llm).replayed > 10, variant.replays) << steps_of(*llm).replayed << " of " << steps_of(*llm).all;
    EXPECT_EQ(llm->engine().stats().blocks_used, 0);
    for (const AdapterInfo& adapter : llm->engine().adapters()) EXPECT_EQ(adapter.users, 0) << adapter.name;
  }
  for (size_t i = 1; i < adapters.size(); ++i) EXPECT_NE(alone[i].tokens, alone[0].tokens) << adapters[i];
}

// Steps without an adapter are those of an engine that has none; a recording with adapters serves whichever there are.
TEST_F(AdaptersOnCard, StepsAreReplayedWithAnyAdapterAndWithNone) {
  EngineConfig config = adapted_on_card("llama");
  auto llm = create(config);
  ASSERT_NO_FATAL_FAILURE(load(*llm, "llama", {"qv", "all_linear", "rslora"}));
  const auto steps_to_answer = [&](const std::string& adapter) {
    const Steps before = steps_of(*llm);
    Asked one{
        .adapter = adapter, .prompt = {5, 6, 7}, .params = {.temperature = 0, .max_tokens = 12, .ignore_eos = true}};
    answers_of(*llm, {one}, true);
    const Steps after = steps_of(*llm);
    return Steps{after.all - before.all, after.replayed - before.replayed};
  };
  const Steps base = steps_to_answer("");
  EXPECT_GE(base.replayed, 11);
  EXPECT_LT(steps_to_answer("all_linear").replayed, 12) << "its first step is recorded";
  for (const char* adapter : {"all_linear", "qv", "rslora", ""})
    EXPECT_GE(steps_to_answer(adapter).replayed, 11) << adapter;
}

TEST_F(AdaptersOnCard, SoftPromptsAnswerAsPeftDoes) {
  for (const std::string name : {"prompt_tuning", "prefix_tuning"}) {
    SCOPED_TRACE(name);
    EngineConfig config = adapted_on_card("llama");
    config.enable_prompt_adapter = true;
    auto llm = create(config);
    ASSERT_NO_FATAL_FAILURE(load(*llm, "llama", {name, "qv"}));
    const std::vector<runner::GoldenCase> cases = runner::read_golden(lora_path("llama/" + name));
    for (const bool beside : {false, true}) {
      std::vector<Asked> asked;
      for (size_t i = 0; i < 2; ++i) {
        const SamplingParams params{.temperature = 0,
                                    .max_tokens = static_cast<int32_t>(cases[i].greedy.size()),
                                    .ignore_eos = true,
                                    .prompt_logprobs = 0};
        asked.push_back({name, cases[i].prompt, params});
        if (beside) asked.push_back({i == 0 ? "qv" : "", cases[i].prompt, params});
      }
      const std::vector<engine::OutputDelta> answers = answers_of(*llm, asked, true);
      for (size_t i = 0; i < 2; ++i) {
        const engine::OutputDelta& answer = answers[beside ? 2 * i : i];
        ASSERT_EQ(answer.prompt_logprobs.size(), cases[i].prompt_logprobs.size());
        for (size_t p = 0; p < answer.prompt_logprobs.size(); ++p)
          ASSERT_NEAR(answer.prompt_logprobs[p].chosen.logprob, cases[i].prompt_logprobs[p], 1e-4) << p;
        for (size_t t = 0; t < cases[i].greedy.size() && cases[i].greedy_margin[t] > 1e-3; ++t)
          ASSERT_EQ(answer.tokens[t], cases[i].greedy[t]) << t;
      }
    }
  }
}

}  // namespace
}  // namespace quire
