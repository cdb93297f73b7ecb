// Adapters of a model that several workers compute: read by all of them, refused by all of them, and there again when
// workers are started again.
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>

#include "runner/adapter_store.h"
#include "runner/local_executor.h"
#include "runner/multiprocess_executor.h"
#include "tests/runner/adapter_steps.h"
#include "tests/runner/thread_workers.h"
#include "tests/runner/tiny_model.h"
#include "tests/runner/worker_steps.h"

namespace quire::runner {
namespace {

using testing::HasSubstr;
using AdapterUse = std::shared_ptr<const AdapterLease>;
using TopTokens = std::vector<std::pair<TokenId, float>>;

class WorkerAdapters : public testing::Test {
 protected:
  std::unique_ptr<Executor> make(const EngineConfig& config) {
    const auto planner = workers_backend(config).value();
    auto made = make_multiprocess_executor(config, std::make_unique<ThreadLauncher>(last_), *planner);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(*made) : nullptr;
  }
  // Greedy, with an adapter in use.
  TopTokens answer(Executor& executor, const AdapterUse& use, size_t count,
                   const std::vector<TokenId>& prompt = {5, 9, 11}) {
    WorkersAdapter adapter{.follows = std::exchange(answered_, true)};
    if (use != nullptr) {
      adapter.number = use->number();
      adapter.num_virtual_tokens = use->adapter().num_virtual_tokens();
    }
    return workers_answer(executor, count, adapter, prompt);
  }
  void begin_anew() { answered_ = false; }

  std::optional<WorkerSegment> last_;
  bool answered_ = false;
};

struct LayoutCase {
  std::string adapter;
  int32_t tensor;
  int32_t pipeline;
};

class WorkerAdapterLayouts : public WorkerAdapters, public testing::WithParamInterface<LayoutCase> {};

TEST_P(WorkerAdapterLayouts, AnswersAreTheReferencesAndThoseOfOneProcess) {
  const auto& [name, tensor, pipeline] = GetParam();
  const std::string family = name.substr(0, name.find('/'));
  const EngineConfig alone = adapted_config(1, 1, family);
  EngineConfig local = alone;
  local.distributed_executor_backend = DistributedBackend::kUni;
  const auto one = make_local_executor(local, workers_backend(local).value()).value();
  const auto ranks = make(adapted_config(tensor, pipeline, family));
  ASSERT_NE(ranks, nullptr);
  for (Executor* executor : {one.get(), ranks.get()}) {
    const Status loaded = load_shared_adapter(*executor, "a", workers_adapter_path(name));
    ASSERT_TRUE(loaded.ok()) << loaded.message();
  }
  bool answered = false;
  for (const GoldenCase& golden : read_golden(workers_adapter_path(name))) {
    if (golden.prompt.size() > 20) continue;  // the table of a test's sequence is short
    std::vector<TopTokens> found;
    for (Executor* executor : {one.get(), ranks.get()}) {
      const AdapterUse use = acquire_adapter(*executor, "a").value();
      answered_ = answered;
      found.push_back(answer(*executor, use, 12, golden.prompt));
    }
    answered = true;
    ASSERT_EQ(found[1].size(), found[0].size());
    for (size_t i = 0; i < found[0].size() && golden.greedy_margin[i] > 1e-3; ++i) {
      EXPECT_EQ(found[1][i].first, golden.greedy[i]) << "token " << i;
      if (tensor == 1) {
        EXPECT_EQ(found[1][i].second, found[0][i].second) << "token " << i;
      } else {
        EXPECT_NEAR(found[1][i].second, found[0][i].second, 1e-4) << "token " << i;
      }
    }
  }
  EXPECT_TRUE(answered);
}

INSTANTIATE_TEST_SUITE_P(
    Of, WorkerAdapterLayouts,
    testing::Values(LayoutCase{"llama/all_linear", 1, 1}, LayoutCase{"llama/all_linear", 2, 1},
                    LayoutCase{"llama/all_linear", 1, 2}, LayoutCase{"llama/all_linear", 2, 2},
                    LayoutCase{"llama/some_layers", 1, 2}, LayoutCase{"llama/embed_head", 1, 2},
                    LayoutCase{"llama/embed_head", 2, 2}, LayoutCase{"llama/dora", 2, 2}, LayoutCase{"opt/dora", 1, 2},
                    LayoutCase{"llama/tokens", 2, 1}, LayoutCase{"llama/tokens", 1, 2},
                    LayoutCase{"qwen2/tokens", 2, 2}, LayoutCase{"mixtral/stacks", 2, 2},
                    LayoutCase{"deepseek_v2/kv_b", 2, 2}, LayoutCase{"llama/prompt_tuning", 2, 1},
                    LayoutCase{"llama/prompt_tuning", 1, 2}, LayoutCase{"llama/prompt_tuning", 2, 2},
                    LayoutCase{"llama/prefix_tuning", 2, 1}, LayoutCase{"llama/prefix_tuning", 1, 2},
                    LayoutCase{"llama/prefix_tuning", 4, 1}, LayoutCase{"llama/prefix_tuning", 2, 2}),
    [](const auto& test) {
      std::string name = fmt::format("{}_{}x{}", test.param.adapter, test.param.pipeline, test.param.tensor);
      std::ranges::replace(name, '/', '_');
      return name;
    });

TEST_F(WorkerAdapters, AVersionThatIsReplacedIsKeptAsLongAsItIsUsed) {
  const auto executor = make(adapted_config(2, 1));
  ASSERT_TRUE(load_shared_adapter(*executor, "a", workers_adapter_path("llama/qv")).ok());
  AdapterUse old = acquire_adapter(*executor, "a").value();
  const TopTokens of_old = answer(*executor, old, 6);
  ASSERT_TRUE(load_shared_adapter(*executor, "a", workers_adapter_path("llama/all_linear"), /*replace=*/true).ok());
  const AdapterUse fresh = acquire_adapter(*executor, "a").value();
  EXPECT_NE(fresh->number(), old->number());
  const TopTokens of_fresh = answer(*executor, fresh, 6);
  EXPECT_NE(of_fresh, of_old);
  EXPECT_EQ(answer(*executor, old, 6), of_old);
  ASSERT_TRUE(executor->adapters()->unload("a").ok());
  EXPECT_EQ(answer(*executor, fresh, 6), of_fresh);
  EXPECT_NE(answer(*executor, nullptr, 6), of_fresh);
}

TEST_F(WorkerAdapters, WhatLeavesForOthersComesBackTheSame) {
  EngineConfig config = adapted_config(2, 1);
  config.max_loras = 1;
  config.enable_prompt_adapter = false;
  const auto executor = make(config);
  std::map<std::string, std::pair<int32_t, TopTokens>> first;
  for (int round = 0; round < 3; ++round) {
    for (const std::string name : {"qv", "some_layers", "patterns"}) {
      if (round == 0) {
        ASSERT_TRUE(load_shared_adapter(*executor, name, workers_adapter_path("llama/" + name)).ok());
      }
      const AdapterUse use = acquire_adapter(*executor, name).value();
      const std::pair found(use->number(), answer(*executor, use, 4));
      EXPECT_EQ(first.try_emplace(name, found).first->second, found) << name << " in round " << round;
    }
  }
  EXPECT_EQ(executor->adapters()->statistics().num_loaded, 1);
  EXPECT_GE(executor->adapters()->statistics().loads, 9u);
}

// Ranks read the same file, and each looks at its own part of it.
TEST_F(WorkerAdapters, WhatOneRankRefusesAllRefuseAndNobodyIsDisturbed) {
  const auto executor = make(adapted_config(2, 1));
  ASSERT_TRUE(load_shared_adapter(*executor, "a", workers_adapter_path("llama/qv")).ok());
  const AdapterUse use = acquire_adapter(*executor, "a").value();
  const TopTokens expected = answer(*executor, use, 8);
  // Outputs of v that the second rank has.
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "broken_on_one_rank";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(workers_adapter_path("llama/qv") + "/adapter_config.json", folder / "adapter_config.json");
  std::ifstream in(workers_adapter_path("llama/qv") + "/adapter_model.safetensors", std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  std::string weights = text.str();
  const float nothing = NAN;
  std::memcpy(weights.data() + weights.size() - sizeof(nothing), &nothing, sizeof(nothing));
  std::ofstream(folder / "adapter_model.safetensors", std::ios::binary) << weights;
  const Status refused = load_shared_adapter(*executor, "broken", folder.string());
  EXPECT_THAT(refused.message(), HasSubstr("rank 1: "));
  EXPECT_THAT(refused.message(), HasSubstr("no finite numbers"));
  EXPECT_EQ(acquire_adapter(*executor, "broken").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(executor->status().ok());
  EXPECT_EQ(answer(*executor, use, 8), expected);
  ASSERT_TRUE(load_shared_adapter(*executor, "b", workers_adapter_path("llama/all_linear")).ok());
  // What none of them takes is told without a rank.
  EXPECT_THAT(load_shared_adapter(*executor, "c", workers_adapter_path("gpt2/qv")).message(),
              testing::AllOf(HasSubstr("another model"), testing::Not(HasSubstr("rank "))));
  std::filesystem::remove_all(folder);
}

TEST_F(WorkerAdapters, AStepThatNamesNoneThatIsThereFailsThatRequestAlone) {
  const auto executor = make(adapted_config(2, 1));
  executor->submit(workers_plan(0, 0, 3, {5, 9, 11}, {.number = 77}));
  const auto step = executor->collect();
  ASSERT_TRUE(step.ok()) << step.status().message();
  EXPECT_THAT(step->result.sequences.at(0).error.message(), HasSubstr("adapter 77"));
  answered_ = true;
  EXPECT_EQ(answer(*executor, nullptr, 4).size(), 4u);
}

TEST_F(WorkerAdapters, ComeBackWithTheWorkers) {
  const auto executor = make(adapted_config(2, 1));
  ASSERT_TRUE(load_shared_adapter(*executor, "a", workers_adapter_path("llama/all_linear")).ok());
  ASSERT_TRUE(load_shared_adapter(*executor, "b", workers_adapter_path("llama/qv")).ok());
  AdapterUse use = acquire_adapter(*executor, "a").value();
  const TopTokens expected = answer(*executor, use, 8);
  last_->end("worker 1 of 2 was unwell");
  ASSERT_TRUE(executor->recover().ok());
  begin_anew();
  EXPECT_EQ(answer(*executor, use, 8), expected) << "by the number that the scheduler knows";
  const AdapterUse other = acquire_adapter(*executor, "b").value();
  EXPECT_NE(answer(*executor, other, 8), expected);
}

TEST_F(WorkerAdapters, WhoseFilesHaveChangedAreReadAnewAfterARestart) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "changed_meanwhile";
  const auto become = [&](const std::string& name) {
    std::filesystem::remove_all(folder);
    std::filesystem::copy(workers_adapter_path(name), folder);
  };
  become("llama/qv");
  const auto executor = make(adapted_config(2, 1));
  ASSERT_TRUE(load_shared_adapter(*executor, "a", folder.string()).ok());
  const AdapterUse old = acquire_adapter(*executor, "a").value();
  const TopTokens of_old = answer(*executor, old, 4);
  become("llama/all_linear");
  last_->end("worker 0 of 2 was unwell");
  ASSERT_TRUE(executor->recover().ok());
  // Nobody has the old one any more: the requests that used it end, on all ranks alike.
  executor->submit(workers_plan(0, 0, 3, {5, 9, 11}, {.number = old->number()}));
  EXPECT_THAT(executor->collect().value().result.sequences.at(0).error.message(), HasSubstr("went with a worker"));
  const AdapterUse fresh = acquire_adapter(*executor, "a").value();
  EXPECT_NE(fresh->number(), old->number());
  answered_ = true;
  EXPECT_NE(answer(*executor, fresh, 4), of_old);
  std::filesystem::remove_all(folder);
}

// Whoever waits for an adapter while the workers fail gets it when they are there again.
TEST_F(WorkerAdapters, AreLoadedWhenTheWorkersAreThereAgain) {
  const auto executor = make(adapted_config(2, 1));
  last_->end("worker 0 of 2 was unwell");
  std::promise<Status> loaded;
  executor->adapters()->load("a", workers_adapter_path("llama/qv"), false,
                             [&](const AdapterStore::LeaseOr& lease) { loaded.set_value(lease.status()); });
  std::future<Status> done = loaded.get_future();
  EXPECT_EQ(done.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
  ASSERT_TRUE(executor->recover().ok());
  EXPECT_TRUE(done.get().ok());
  EXPECT_EQ(answer(*executor, acquire_adapter(*executor, "a").value(), 4).size(), 4u);
}

TEST_F(WorkerAdapters, AreRefusedWhenTheWorkersAreGoneForGood) {
  EngineConfig config = adapted_config(2, 1);
  config.max_restarts = 0;
  const auto executor = make(config);
  last_->end("worker 0 of 2 was unwell");
  EXPECT_FALSE(executor->recover().ok());
  EXPECT_THAT(load_shared_adapter(*executor, "a", workers_adapter_path("llama/qv")).message(), HasSubstr("are gone"));
}

TEST(WorkerAdapterPlan, ARankCountsItsPart) {
  const EngineConfig config = adapted_config(1, 1);
  const auto backend = workers_backend(config).value();
  const auto checkpoint = checkpoint::Checkpoint::open(tiny_path("llama")).value();
  const int64_t whole = plan_model(config, *checkpoint, *backend, 0).value().memory.adapter_bytes;
  for (const auto& [tensor, pipeline] : {std::pair(2, 1), {1, 2}}) {
    EngineConfig of_rank = adapted_config(tensor, pipeline);
    for (of_rank.rank = 0; of_rank.rank < 2; ++of_rank.rank) {
      const int64_t bytes = plan_model(of_rank, *checkpoint, *backend, 0).value().memory.adapter_bytes;
      // Of a cut product one of the two factors is whole.
      EXPECT_LT(bytes, whole * 8 / 10);
      EXPECT_GE(bytes, whole * 4 / 10);
    }
  }
}

}  // namespace
}  // namespace quire::runner
