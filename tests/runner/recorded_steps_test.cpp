// Steps that are recorded and replayed (CUDA graphs) beside the same steps computed call by call.
#include <gtest/gtest.h>

#include <utility>

#include "runner/local_executor.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

constexpr int32_t kSteps = 8;
constexpr int32_t kBlocksEach = 24;  // of 16 tokens, in each group

struct Answers {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<float>> logprobs;  // of the tokens
  int num_replayed = 0;
};

struct Way {
  bool eager = false;
  // A prompt is computed in pieces beside the tokens of those before it; else the prompts one after the other in steps
  // of their own, then a token of each a step.
  bool mixed = false;
  KvCacheDType kv_cache_dtype = KvCacheDType::kAuto;
  // Blocks that all prompts begin with, computed in a step of their own: by each, or by the first alone, whose blocks
  // the others read.
  int32_t prefix = 0;
  bool shares = false;
};

void answer(const std::string& family, const std::string& kind, const Way& way,
            std::span<const std::vector<TokenId>> prompts, Answers& answers) {
  EngineConfig config{.model = tiny_path(family), .skip_tokenizer_init = true, .num_gpu_blocks_override = 512};
  // A step of so many is run at start, which takes an emulated device a while.
  config.max_num_batched_tokens = std::max(32, way.prefix * TinyModel::kBlockSize);
  config.max_num_seqs = 8;
  config.enforce_eager = way.eager;
  config.kv_cache_dtype = way.kv_cache_dtype;
  auto executor = make_local_executor(config, make_test_backend(kind));
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  const std::vector<int32_t> windows = (*executor)->memory().windows;
  const auto num_groups = static_cast<int32_t>(windows.size());
  SamplingParams params{.temperature = 0, .logprobs = 0};
  const auto shared = std::make_shared<const SamplingParams>(params);
  answers.tokens.resize(prompts.size());
  answers.logprobs.resize(prompts.size());
  const auto execute = [&](StepPlan plan) {
    for (const ScheduledSequence& run : plan.scheduled) plan.num_tokens += run.num_new_tokens;
    (*executor)->submit(plan);
    auto step = (*executor)->collect();
    ASSERT_TRUE(step.ok()) << step.status().message();
    answers.num_replayed += step->timings.replayed ? 1 : 0;
    for (const SequenceResult& result : step->result.sequences) {
      ASSERT_TRUE(result.error.ok()) << result.error.message();
      if (result.tokens.empty()) continue;  // of a part of a prompt
      answers.tokens[result.id].push_back(result.tokens.at(0));
      answers.logprobs[result.id].push_back(result.logprobs.at(0).chosen.logprob);
    }
  };
  const auto schedule = [&](StepPlan& plan, size_t i, size_t computed, size_t count) {
    plan.scheduled.push_back({.id = i,
                              .num_computed_tokens = static_cast<int32_t>(computed),
                              .num_new_tokens = static_cast<int32_t>(count),
                              .samples = computed + count >= prompts[i].size()});
    for (int32_t group = 0; group < num_groups; ++group) {
      const int32_t window = windows[static_cast<size_t>(group)];
      std::vector<BlockId> table;
      for (int32_t block = 0; block < kBlocksEach; ++block) {
        const BlockId whose = way.shares && block < way.prefix ? 0 : static_cast<BlockId>(i);
        const bool behind = window > 0 && (block + 1) * 16 + window <= static_cast<int32_t>(computed);
        table.push_back(behind ? kNoBlock : (whose * num_groups + group) * kBlocksEach + block);
      }
      tell_whole_table(plan, i, group, table);
    }
  };
  const auto prefix = static_cast<size_t>(way.prefix) * 16;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const size_t piece = way.mixed ? 2 : prompts[i].size();
    StepPlan plan;
    plan.added.push_back({.id = i, .prompt = prompts[i], .params = shared});
    if (prefix > 0 && (i == 0 || !way.shares)) {
      schedule(plan, i, 0, prefix);
      execute(std::exchange(plan, {}));
    }
    for (size_t computed = prefix; computed < prompts[i].size(); computed += piece) {
      for (size_t j = 0; j < i && way.mixed; ++j) {
        schedule(plan, j, prompts[j].size() + answers.tokens[j].size() - 1, 1);
      }
      schedule(plan, i, computed, std::min(piece, prompts[i].size() - computed));
      execute(std::exchange(plan, {}));
    }
  }
  for (size_t step = 0; step < kSteps && !way.mixed; ++step) {
    StepPlan plan;
    for (size_t i = 0; i < prompts.size(); ++i) schedule(plan, i, prompts[i].size() + step, 1);
    execute(std::move(plan));
  }
}

class RecordedSteps : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

// Replayed ones have rows that are nobody's, block tables wider than needed and longer grids: where the host emulates
// the card the same bits come out; on a card products of other numbers of rows may be summed in another order.
void expect_the_same(const std::string& family, const std::string& kind, bool mixed) {
  const std::vector<GoldenCase> cases = read_golden(family);
  std::vector<std::vector<TokenId>> prompts;
  // 5 of them, for which 8 places are recorded.
  for (size_t i = 0; i < 5; ++i) prompts.push_back(cases[i % 2].prompt);  // the short ones
  for (size_t i = 0; i < prompts.size(); ++i) prompts[i].push_back(static_cast<TokenId>(3 + i));
  Answers eager;
  Answers replayed;
  ASSERT_NO_FATAL_FAILURE(answer(family, kind, {.eager = true, .mixed = mixed}, prompts, eager));
  ASSERT_NO_FATAL_FAILURE(answer(family, kind, {.mixed = mixed}, prompts, replayed));
  EXPECT_EQ(eager.num_replayed, 0);
  // Mixed steps: all of a size but the first. Which table rotates a longrope sequence is decided step by step.
  // Gemma 4's prompts are shorter than the others', and so are there fewer such steps.
  const int32_t enough = mixed && family.starts_with("gemma4") ? 6 : kSteps;
  EXPECT_EQ(replayed.num_replayed >= enough, family != "phi3_longrope") << replayed.num_replayed;
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_EQ(replayed.tokens[i].size(), eager.tokens[i].size());
    ASSERT_FALSE(replayed.tokens[i].empty());
    for (size_t t = 0; t < replayed.tokens[i].size(); ++t) {
      SCOPED_TRACE(testing::Message() << "sequence " << i << ", token " << t);
      if (cards::is_emulated(kind)) {
        ASSERT_EQ(replayed.tokens[i][t], eager.tokens[i][t]);
        EXPECT_EQ(replayed.logprobs[i][t], eager.logprobs[i][t]);
      } else {
        if (replayed.tokens[i][t] != eager.tokens[i][t]) break;  // two that were as likely
        EXPECT_NEAR(replayed.logprobs[i][t], eager.logprobs[i][t], 1e-3);
      }
    }
  }
}

TEST_P(RecordedSteps, AnswerAsThoseThatAreNot) {
  const auto& [family, kind] = GetParam();
  if (make_test_backend(kind) == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  expect_the_same(family, kind, /*mixed=*/false);
}

TEST_P(RecordedSteps, OfPromptsAndAnswersTogetherDoTheSame) {
  const auto& [family, kind] = GetParam();
  if (make_test_backend(kind) == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  expect_the_same(family, kind, /*mixed=*/true);
}

class SharedBlocks : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

// A card reads the keys and values of a prefix's blocks once for several sequences, in recorded steps as well: no bit
// of an answer changes.
TEST_P(SharedBlocks, AnswerAsBlocksOfTheirOwn) {
  const auto& [family, kind] = GetParam();
  if (make_test_backend(kind) == nullptr) GTEST_SKIP() << "this machine has no " << kind;
  std::vector<std::vector<TokenId>> prompts(5);  // for which 8 places are recorded
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (int32_t t = 0; t < 272; ++t) prompts[i].push_back(3 + t * t % 500);
    prompts[i].resize(prompts[i].size() + 1 + i, static_cast<TokenId>(7 + i));
  }
  Way way{.eager = true, .kv_cache_dtype = KvCacheDType::kFloat16, .prefix = 17};
  Answers apart;
  Answers shared;
  Answers replayed;
  ASSERT_NO_FATAL_FAILURE(answer(family, kind, way, prompts, apart));
  way.shares = true;
  ASSERT_NO_FATAL_FAILURE(answer(family, kind, way, prompts, shared));
  way.eager = false;
  ASSERT_NO_FATAL_FAILURE(answer(family, kind, way, prompts, replayed));
  EXPECT_EQ(shared.tokens, apart.tokens);
  EXPECT_EQ(shared.logprobs, apart.logprobs);
  if (!cards::is_emulated(kind)) return;  // products of other numbers of rows
  EXPECT_GE(replayed.num_replayed, kSteps - 1);
  EXPECT_EQ(replayed.tokens, apart.tokens);
  EXPECT_EQ(replayed.logprobs, apart.logprobs);
}

INSTANTIATE_TEST_SUITE_P(Families, SharedBlocks,
                         testing::Combine(testing::Values("llama", "gemma3"), testing::Values("cuda")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

INSTANTIATE_TEST_SUITE_P(Families, RecordedSteps,
                         testing::Combine(testing::Values("llama", "mixtral", "gemma3", "gemma4", "gemma4_moe",
                                                          "deepseek_v3", "gpt_oss", "phi3_longrope"),
                                          testing::Values("cuda")),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

}  // namespace
}  // namespace quire::runner
