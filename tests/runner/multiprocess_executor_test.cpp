// Workers as threads of this process: everything but the processes. Those are the end-to-end tests' (e2e.distributed).
#include "runner/multiprocess_executor.h"

#include <gmock/gmock.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "runner/local_executor.h"
#include "runner/worker.h"
#include "runner/worker_messages.h"
#include "tests/runner/thread_workers.h"
#include "tests/runner/tiny_model.h"
#include "tests/runner/worker_steps.h"

namespace quire::runner {
namespace {

using testing::HasSubstr;

class Workers : public testing::Test {
 protected:
  Result<std::unique_ptr<Executor>> make(const EngineConfig& config) {
    const auto planner = workers_backend(config).value();
    return make_multiprocess_executor(config, std::make_unique<ThreadLauncher>(last_), *planner);
  }
  std::optional<WorkerSegment> last_;
};

TEST_F(Workers, OneAndStagesGiveTheBitsOfThisProcessAndPartsNearlySo) {
  EngineConfig alone = workers_config(1, 1);
  const auto local = make_local_executor(alone, workers_backend(alone).value()).value();
  const auto expected = workers_answer(*local, 20);
  for (const auto& [tensor, pipeline] : {std::pair(1, 1), {1, 2}, {2, 1}, {2, 2}, {4, 1}}) {
    SCOPED_TRACE(fmt::format("{} stages of {}", pipeline, tensor));
    auto executor = make(workers_config(tensor, pipeline));
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    EXPECT_EQ((*executor)->memory().num_blocks, 32);
    const auto found = workers_answer(**executor, 20);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, expected[i].first);
      if (tensor == 1) {
        EXPECT_EQ(found[i].second, expected[i].second);
      } else {
        EXPECT_NEAR(found[i].second, expected[i].second, 1e-4);
      }
    }
  }
}

// Longer than one that has begun may be silent: its program may come from a slow disk.
TEST_F(Workers, OneThatBeginsLateIsWaitedFor) {
  const EngineConfig config = workers_config(2, 1);
  const auto planner = workers_backend(config).value();
  auto executor = make_multiprocess_executor(
      config, std::make_unique<ThreadLauncher>(last_, workers_backend, std::chrono::milliseconds(1000)), *planner);
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  EXPECT_EQ(workers_answer(**executor, 3).size(), 3u);
}

// Before the first layer, between, behind the last and behind its norm: of a pipeline each stage takes some of them.
TEST_F(Workers, StatesThatAreAskedForComeWithTheResult) {
  const std::vector<TokenId> prompt = {5, 9, 11, 7, 30, 31, 32, 33, 34, 35};
  const auto states = [&](int32_t tensor, int32_t pipeline, std::vector<int32_t> layers) {
    EngineConfig config = workers_config(tensor, pipeline);
    config.state_layers = std::move(layers);
    const auto executor = make(config).value();
    executor->submit(workers_plan(0, 0, static_cast<int32_t>(prompt.size()), prompt));
    auto done = executor->collect();
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() ? done->states : std::vector<float>();
  };
  EXPECT_TRUE(states(2, 1, {}).empty());
  const std::vector<float> expected = states(1, 1, {0, 1, 2, 3});
  const size_t layer = expected.size() / 4;
  ASSERT_EQ(layer % prompt.size(), 0u);
  for (int begin = 0; begin < 4; ++begin) {
    const auto at = expected.begin() + begin * static_cast<ptrdiff_t>(layer);
    EXPECT_TRUE(std::any_of(at, at + static_cast<ptrdiff_t>(layer), [](float x) { return x != 0; })) << begin;
  }
  EXPECT_EQ(states(1, 2, {0, 1, 2, 3}), expected);
  EXPECT_EQ(states(1, 2, {2}), std::vector<float>(expected.begin() + 2 * static_cast<ptrdiff_t>(layer),
                                                  expected.begin() + 3 * static_cast<ptrdiff_t>(layer)));
  for (const auto& [tensor, pipeline] : {std::pair(2, 1), {2, 2}}) {
    EXPECT_THAT(states(tensor, pipeline, {0, 1, 2, 3}), testing::Pointwise(testing::FloatNear(1e-4f), expected));
  }
  for (const std::vector<int32_t>& layers : {std::vector<int32_t>{1, 1}, {2, 1}, {-1, 1}, {0, 4}}) {
    EngineConfig config = workers_config(1, 2);
    config.state_layers = layers;
    EXPECT_THAT(make(config).status().message(), HasSubstr("expected rising numbers from 0 to 3"));
  }
}

// Ranks that do not sample are told how many guesses held, and which token came then.
TEST_F(Workers, DraftTokensHoldForAllRanks) {
  const std::vector<TokenId> prompt = {5, 9, 11, 7, 30, 31, 32, 33, 34, 35};
  for (const auto& [tensor, pipeline] : {std::pair(1, 1), {1, 2}, {2, 1}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("{} stages of {}", pipeline, tensor));
    std::vector<TokenId> expected;
    for (const auto& [token, logprob] : workers_answer(**make(workers_config(tensor, pipeline)), 10))
      expected.push_back(token);
    ASSERT_EQ(expected.size(), 10u);
    const auto executor = make(workers_config(tensor, pipeline)).value();
    std::vector<TokenId> found;
    uint64_t step = 0;
    size_t told = 0;
    const auto take = [&](StepPlan plan) {
      while (told < found.size()) plan.sampled.push_back({.id = 1, .token = found[told++]});
      executor->submit(std::move(plan));
      auto done = executor->collect();
      ASSERT_TRUE(done.ok()) << done.status().message();
      for (const TokenId token : done->result.sequences.at(0).tokens) found.push_back(token);
    };
    const auto decode = [&](const std::vector<TokenId>& drafts) {
      StepPlan plan = workers_plan(++step, static_cast<int32_t>(prompt.size() + found.size()) - 1, 1, prompt);
      plan.scheduled[0].num_draft_tokens = static_cast<int32_t>(drafts.size());
      plan.draft_tokens = drafts;
      plan.num_tokens += static_cast<int32_t>(drafts.size());
      take(std::move(plan));
    };
    const TokenId wrong = expected[3] == 1 ? 2 : 1;
    take(workers_plan(0, 0, static_cast<int32_t>(prompt.size()), prompt));
    EXPECT_EQ(found.size(), 1u);
    decode({expected[1], expected[2], wrong, expected[4]});
    EXPECT_EQ(found.size(), 4u);
    decode({expected[4] == 1 ? 2 : 1});
    EXPECT_EQ(found.size(), 5u);
    decode({});
    decode({expected[6], expected[7], expected[8]});
    EXPECT_EQ(found, expected);
  }
}

TEST_F(Workers, AfterAFailureTheyBeginAnew) {
  auto executor = make(workers_config(2, 1));
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  std::atomic<int> told{0};
  (*executor)->on_failure([&] { ++told; });
  const auto expected = workers_answer(**executor, 5);
  last_->end("worker 1 of 2 was unwell");
  EXPECT_EQ((*executor)->status().message(), "worker 1 of 2 was unwell");
  (*executor)->submit(workers_plan(5, 14, 1, {}));
  EXPECT_EQ((*executor)->collect().status().message(), "worker 1 of 2 was unwell");
  for (int i = 0; i < 100 && told == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(told, 1);
  ASSERT_TRUE((*executor)->can_recover());
  const Status recovered = (*executor)->recover();
  ASSERT_TRUE(recovered.ok()) << recovered.message();
  EXPECT_TRUE((*executor)->status().ok());
  EXPECT_EQ((*executor)->memory().num_blocks, 32);
  EXPECT_EQ(workers_answer(**executor, 5), expected);
}

TEST_F(Workers, BeginAnewSoOftenAndNoMore) {
  EngineConfig config = workers_config(1, 1);
  config.max_restarts = 2;
  auto executor = make(config);
  ASSERT_TRUE(executor.ok());
  for (int i = 0; i < 2; ++i) {
    last_->end("ended");
    ASSERT_TRUE((*executor)->recover().ok());
  }
  last_->end("ended once more");
  const Status refused = (*executor)->recover();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("ended once more; they have been started again 2 times"));
}

TEST_F(Workers, WhatAWorkerCannotDoIsToldInItsWords) {
  EngineConfig config = workers_config(2, 1);
  config.max_model_len = 1 << 20;
  EXPECT_THAT(make(config).status().message(), HasSubstr("max_model_len is 1048576"));
  config = workers_config(2, 1);
  config.tensor_parallel_size = 3;
  config.pipeline_parallel_size = 40;
  EXPECT_THAT(make(config).status().message(), HasSubstr("pipeline_parallel_size is 40"));
  config = workers_config(1, 5);
  EXPECT_THAT(make(config).status().message(), HasSubstr("the model has 2 layers"));
}

TEST_F(Workers, AnOrderForAnotherRankOrOfAnotherVersionIsRefused) {
  for (const bool other_version : {false, true}) {
    const WorkerSegment::Shape shape{1, 2};
    auto memory = comm::SharedSegment::create(WorkerSegment::bytes(shape)).value();
    const WorkerSegment segment(memory.data(), shape);
    EngineConfig config = workers_config(2, 1);
    config.rank = other_version ? 1 : 0;
    std::string order = encode_order(config);
    if (other_version) ++order[4];
    ASSERT_TRUE(segment.orders(1).write(order, [] { return true; }).ok());
    const Status ended = run_worker(segment, 1, workers_backend);
    EXPECT_THAT(ended.message(), HasSubstr(other_version ? "run the same program on both sides"
                                                         : "rank 1 of 2 is told to be rank 0 of 2"));
    const auto report = decode_report(segment.results(1).read([] { return false; }).value());
    EXPECT_EQ(report.value().status.message(), ended.message());
  }
}

TEST(WorkerMessages, AnOrderIsReadAsItWasWritten) {
  EngineConfig config = workers_config(2, 3);
  config.rank = 5;
  config.quantization = Quantization::kInt4;
  config.pooling_type = PoolingType::kWeightedMean;  // the last
  config.cpu_affinity = "0";
  config.state_layers = {1, 7};
  const EngineConfig read = decode_order(encode_order(config)).value();
  EXPECT_EQ(encode_order(read), encode_order(config));
  EXPECT_EQ(read.rank, 5);
  EXPECT_EQ(read.state_layers, config.state_layers);
  EXPECT_EQ(read.quantization, Quantization::kInt4);
  // Nobody has chosen a card: the CPU.
  config.device = {};
  EXPECT_EQ(decode_order(encode_order(config))->device, DeviceChoice::cpu());
  config.device = DeviceChoice::cuda(3);
  config.attention_backend = AttentionBackend::kFa3;  // the last
  config.enforce_eager = true;
  config.enable_chunked_prefill = false;
  const EngineConfig on_card = decode_order(encode_order(config)).value();
  EXPECT_EQ(on_card.device, DeviceChoice::cuda(3));
  EXPECT_EQ(on_card.attention_backend, AttentionBackend::kFa3);
  EXPECT_TRUE(on_card.enforce_eager);
  EXPECT_FALSE(on_card.enable_chunked_prefill);
  // Of speculation it says how guesses are accepted, and how many there may be.
  config.speculative_config = {.method = SpeculativeMethod::kNgram, .num_speculative_tokens = 3};
  config.speculative_config.acceptance = {.method = AcceptanceMethod::kTypical, .posterior_threshold = 0.25};
  // Whoever guesses, a worker knows how many draft tokens a plan may have beside states.
  config.speculative_config.method = SpeculativeMethod::kSuffix;
  config.speculative_config.num_speculative_tokens = 0;
  EXPECT_EQ(most_state_drafts(decode_order(encode_order(config))->speculative_config), 8);
  config.speculative_config.num_speculative_tokens = 3;
  EXPECT_EQ(most_state_drafts(decode_order(encode_order(config))->speculative_config), 3);
  config.speculative_config.method = SpeculativeMethod::kNone;
  config.speculative_config.num_speculative_tokens = 0;
  EXPECT_EQ(most_state_drafts(decode_order(encode_order(config))->speculative_config), 0);
  const auto speculates = decode_order(encode_order(config));
  ASSERT_TRUE(speculates.ok()) << speculates.status().message();
  EXPECT_EQ(speculates->speculative_config.acceptance, config.speculative_config.acceptance);
  config.speculative_config.acceptance.posterior_threshold = 7;
  EXPECT_THAT(decode_order(encode_order(config)).status().message(), HasSubstr("posterior_threshold is 7"));
  config.speculative_config.acceptance = {};
  config.rank = 6;  // of six
  EXPECT_EQ(decode_order(encode_order(config)).status().code(), StatusCode::kInvalidArgument);
}

// ---- what the fuzz target begins with; the first byte says what a message is ----

std::filesystem::path seeds_of_workers() {
  return std::filesystem::path(QUIRE_TEST_DATA) / "../fuzz/corpus/worker_protocol";
}

// Writes them anew, when the version is raised: --gtest_also_run_disabled_tests --gtest_filter=*WritesTheSeeds*
TEST(WorkerMessages, DISABLED_WritesTheSeedsOfTheirFuzzTarget) {
  const auto write = [](const std::string& name, char which, const std::string& content) {
    std::ofstream(seeds_of_workers() / name, std::ios::binary) << which << content;
  };
  EngineConfig config = workers_config(2, 1);
  config.model = "/models/tiny";
  config.rank = 1;
  const std::string order = encode_order(config);
  write("order", 0, order);
  write("order_cut", 0, order.substr(0, order.size() / 2));
  std::string other = order;
  --other[4];
  write("order_other_version", 0, other);
  config.rank = 7;
  write("order_rank_of_none", 0, encode_order(config));
  config.rank = 1;
  config.quantization = static_cast<Quantization>(200);
  write("order_unknown_choice", 0, encode_order(config));
  WorkerReport report{.status = {}, .description = "cpu", .num_blocks = 64};
  write("report", 1, encode(report));
  report.status = invalid_argument("no");
  write("report_error", 1, encode(report));
  const WorkerHello hello{.program = "1a", .host = "a", .kernels = "cpu, avx2", .model = "m", .cores = {0, 1}};
  write("hello", 3, encode(hello));
  write("hello_cut", 3, encode(hello).substr(0, 40));
  const AdapterOrder adapter{.kind = AdapterOrder::Kind::kUse, .handle = 3, .number = 2, .path = "a", .revision = 7};
  write("adapter_order", 4, encode(adapter));
  write("adapter_order_cut", 4, encode(adapter).substr(0, 20));
  const AdapterReport of_adapter{.handle = 3, .status = invalid_argument("no"), .bytes = 64, .most_bytes = 640};
  write("adapter_report", 5, encode(of_adapter));
}

TEST(WorkerMessages, TheSeedsOfTheirFuzzTargetAreOfThisVersion) {
  const auto read = [](const std::string& name) {
    std::ifstream file(seeds_of_workers() / name, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {}).substr(1);
  };
  EXPECT_TRUE(decode_order(read("order")).ok());
  for (const char* bad : {"order_cut", "order_other_version", "order_rank_of_none", "order_unknown_choice"}) {
    EXPECT_FALSE(decode_order(read(bad)).ok()) << bad;
  }
  EXPECT_THAT(decode_order(read("order_rank_of_none")).status().message(), HasSubstr("rank 7 of 2"));
  EXPECT_TRUE(decode_report(read("report")).value().status.ok());
  EXPECT_EQ(decode_report(read("report_error")).value().status.message(), "no");
  EXPECT_EQ(decode_hello(read("hello")).value().host, "a");
  EXPECT_FALSE(decode_hello(read("hello_cut")).ok());
  EXPECT_EQ(decode_adapter_order(read("adapter_order")).value().revision, 7u);
  EXPECT_FALSE(decode_adapter_order(read("adapter_order_cut")).ok());
  EXPECT_EQ(decode_adapter_report(read("adapter_report")).value().status.message(), "no");
}

}  // namespace
}  // namespace quire::runner
