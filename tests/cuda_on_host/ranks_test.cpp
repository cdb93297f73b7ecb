// Workers on cards of their own: threads of this process in the place of processes.
#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "cli/backend.h"
#include "comm/shared_communicator.h"
#include "comm/shared_segment.h"
#include "nccl_on_host.h"
#include "peers_on_host.h"
#include "ranks_on_cards.h"
#include "refused_capture.h"
#include "runner/device_communicator.h"
#include "types/constraint_table.h"
#include "types/token_constraint.h"

namespace quire::runner {
namespace {

using testing::HasSubstr;

// Tokens of even numbers follow; multiples of eight are refused once they are drawn.
class Evens final : public TokenMasks {
 public:
  class Even final : public State {
   public:
    std::unique_ptr<State> clone() const override { return std::make_unique<Even>(); }
    bool allowed(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0x55555555u);
      return true;
    }
    bool accept(TokenId token) override { return token % 2 == 0 && token % 8 != 0; }
  };
  std::unique_ptr<State> start() const override { return std::make_unique<Even>(); }
};
struct OneConstraint final : ConstraintSource {
  std::shared_ptr<const TokenMasks> find(ConstraintId /*id*/) const override { return std::make_shared<Evens>(); }
};

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
};
struct Answers {
  std::vector<Answer> of;
  int num_replayed = 0;
};

// Four requests together: a greedy one with log-probabilities, one that is drawn from penalised logits, one of some
// tokens alone, and one with a constraint that the ranks do not know which draw nothing; each joins while those before
// it decode. Steps are recorded.
Answers answer(Executor& executor, size_t count) {
  SamplingParams greedy{.temperature = 0, .logprobs = 2};
  SamplingParams drawn{.temperature = 0.8f, .top_k = 20, .repetition_penalty = 1.2f, .logprobs = 0};
  SamplingParams masked{
      .temperature = 0.5f, .allowed_token_ids = std::vector<TokenId>{3, 9, 17, 30, 33}, .logprobs = 0};
  const std::vector<SamplingParams> params = {greedy, drawn, masked, greedy};
  constexpr size_t kConstrained = 3;
  executor.use_constraints(std::make_shared<const OneConstraint>());
  const std::vector<std::vector<TokenId>> prompts = {
      {5, 9, 11, 7, 30, 31, 32, 33, 34, 35}, {8, 8, 2, 60}, {1, 2, 3}, {40, 41, 2}};
  Answers answers{.of = std::vector<Answer>(prompts.size())};
  const auto join = [&](StepPlan& plan, size_t i) {
    plan.added.push_back(
        {.id = i, .prompt = prompts[i], .params = std::make_shared<const SamplingParams>(params[i]), .seed = 7 + i});
    if (i == kConstrained) plan.added.back().constraint = 1;
    const auto first = static_cast<BlockId>(8 * i);
    tell_whole_table(plan, i, 0, std::vector<BlockId>{first + 3, first + 1, first + 2, first + 5});
    plan.scheduled.push_back({.id = i, .num_new_tokens = static_cast<int32_t>(prompts[i].size()), .samples = true});
  };
  for (size_t step = 0; step < count; ++step) {
    StepPlan plan;
    plan.step = step;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Answer& known = answers.of[i];
      if (known.tokens.empty()) continue;
      plan.sampled.push_back({.id = i, .token = known.tokens.back()});
      const size_t computed = prompts[i].size() + known.tokens.size() - 1;
      plan.scheduled.push_back(
          {.id = i, .num_computed_tokens = static_cast<int32_t>(computed), .num_new_tokens = 1, .samples = true});
    }
    if (step < prompts.size()) join(plan, step);
    for (const ScheduledSequence& run : plan.scheduled) plan.num_tokens += run.num_new_tokens;
    executor.submit(std::move(plan));
    const auto done = executor.collect();
    EXPECT_TRUE(done.ok()) << done.status().message();
    if (!done.ok()) return answers;
    answers.num_replayed += done->timings.replayed ? 1 : 0;
    for (const SequenceResult& result : done->result.sequences) {
      EXPECT_TRUE(result.error.ok()) << result.error.message();
      answers.of[result.id].tokens.push_back(result.tokens.at(0));
      answers.of[result.id].logprobs.push_back(result.logprobs.at(0).chosen.logprob);
    }
  }
  const auto is_allowed = [](TokenId token) { return token % 2 == 0 && token % 8 != 0; };
  EXPECT_TRUE(std::ranges::all_of(answers.of[kConstrained].tokens, is_allowed));
  return answers;
}

void expect_nearly(const Answers& found, const Answers& expected, float tolerance) {
  for (size_t i = 0; i < expected.of.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i);
    EXPECT_EQ(found.of[i].tokens, expected.of[i].tokens);
    ASSERT_EQ(found.of[i].logprobs.size(), expected.of[i].logprobs.size());
    for (size_t t = 0; t < expected.of[i].logprobs.size(); ++t)
      EXPECT_NEAR(found.of[i].logprobs[t], expected.of[i].logprobs[t], tolerance);
  }
}

class RanksOnCards : public WithCards {
 protected:
  static Answers of_one() { return answer(*start_one(cards_config(1, 1)), kSteps); }
  static constexpr size_t kSteps = 12;
};

TEST_F(RanksOnCards, AnswerAsOneCardDoes) {
  const Answers expected = of_one();
  EXPECT_GE(expected.num_replayed, 6);
  for (const auto& [tensor, pipeline] : {std::pair(1, 1), {2, 1}, {1, 2}, {2, 2}}) {
    SCOPED_TRACE(fmt::format("{} stages of {}", pipeline, tensor));
    seen_cards_.clear();
    const auto executor = start_workers(cards_config(tensor, pipeline));
    ASSERT_TRUE(executor.ok()) << executor.status().message();
    EXPECT_EQ(seen_cards_.size(), static_cast<size_t>(tensor * pipeline));
    const Answers found = answer(**executor, kSteps);
    expect_nearly(found, expected, tensor == 1 ? 0 : 1e-4f);
    EXPECT_EQ(found.num_replayed, expected.num_replayed);
  }
}

TEST_F(RanksOnCards, BitsRepeatAndThoseOfEagerStepsAreTheSame) {
  const Answers first = answer(**start_workers(cards_config(2, 1)), kSteps);
  expect_nearly(answer(**start_workers(cards_config(2, 1)), kSteps), first, 0);
  EngineConfig eager = cards_config(2, 1);
  eager.enforce_eager = true;
  const Answers found = answer(**start_workers(eager), kSteps);
  expect_nearly(found, first, 0);
  EXPECT_EQ(found.num_replayed, 0);
}

// One of the ranks cannot record a shape that the others do: they go on in step.
TEST_F(RanksOnCards, OneThatCannotRecordGoesOnBesideOthers) {
  const Answers expected = answer(**start_workers(cards_config(2, 1)), kSteps);
  cuda_on_host::refuse_captured_call(7);
  const Answers found = answer(**start_workers(cards_config(2, 1)), kSteps);
  cuda_on_host::refuse_captured_call(-1);
  expect_nearly(found, expected, 0);
}

// Columns and messages as they are; sums by NCCL, of more than two in another order than by way of the host, or out of
// each other's memory, which is the host's order.
TEST_F(RanksOnCards, ExchangeByNcclWhereAllHaveIt) {
  const Answers expected = of_one();
  for (const bool reach : {false, true}) {
    cuda_on_host::let_cards_reach_each_other(reach);
    for (const auto& [tensor, pipeline] : {std::pair(2, 1), {1, 2}, {2, 2}}) {
      SCOPED_TRACE(fmt::format("{} stages of {}, which reach each other: {}", pipeline, tensor, reach));
      const Answers by_host = answer(**start_workers(cards_config(tensor, pipeline)), kSteps);
      const int messages = ops::cuda::nccl_messages();
      const int sums = ops::cuda::nccl_sums();
      const int meetings = cuda_on_host::meetings_of_cards();
      ops::cuda::offer_nccl(true);
      const Answers found = answer(**start_workers(cards_config(tensor, pipeline)), kSteps);
      ops::cuda::offer_nccl(false);
      expect_nearly(found, expected, tensor == 1 ? 0 : 1e-4f);
      EXPECT_EQ(found.num_replayed, expected.num_replayed);
      EXPECT_EQ(ops::cuda::nccl_sums() > sums, tensor > 1 && !reach);
      // Four are those of the trial.
      EXPECT_EQ(cuda_on_host::meetings_of_cards() > meetings + 4 * tensor * pipeline, tensor > 1 && reach);
      EXPECT_GT(ops::cuda::nccl_messages(), messages);
      if (reach) expect_nearly(found, by_host, 0);
    }
  }
}

TEST_F(RanksOnCards, AddUpByNcclAloneWhereTheyAreToldTo) {
  ops::cuda::offer_nccl(true);
  const int sums = ops::cuda::nccl_sums();
  const int meetings = cuda_on_host::meetings_of_cards();
  EngineConfig config = cards_config(2, 1);
  config.disable_custom_all_reduce = true;
  expect_nearly(answer(**start_workers(config), kSteps), of_one(), 1e-4f);
  ops::cuda::offer_nccl(false);
  EXPECT_GT(ops::cuda::nccl_sums(), sums);
  EXPECT_EQ(cuda_on_host::meetings_of_cards(), meetings);
}

TEST_F(RanksOnCards, GoByTheHostWhereNcclDoesNotBeginOnAll) {
  const Answers expected = answer(**start_workers(cards_config(2, 1)), kSteps);
  ops::cuda::offer_nccl(true);
  ops::cuda::refuse_nccl_on(1u << 1);
  const int sums = ops::cuda::nccl_sums();
  testing::internal::CaptureStdout();
  const Answers found = answer(**start_workers(cards_config(2, 1)), kSteps);
  const std::string log = testing::internal::GetCapturedStdout();
  ops::cuda::refuse_nccl_on(0);
  ops::cuda::offer_nccl(false);
  expect_nearly(found, expected, 0);
  EXPECT_EQ(ops::cuda::nccl_sums(), sums);
  EXPECT_THAT(log, HasSubstr("NCCL does not begin on rank 1: internal error"));
}

// Matrices whose ranges overlap, and sums, also such whose order may not follow from their size.
TEST_F(RanksOnCards, NcclGathersColumnsAndIsNotAskedForSumsThatAreSmallOrOfOneOrder) {
  ops::cuda::offer_nccl(true);
  const comm::SharedGroupShape shape{.num_ranks = 3, .slot_bytes = 16 << 10};
  auto segment = comm::SharedSegment::create(comm::shared_group_bytes(shape)).value();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const auto host = comm::join_shared_group(segment.data(), shape, {.rank = rank}).value();
      EngineConfig config = cards_config(1, 1);
      config.device = DeviceChoice::cuda(rank);
      const auto backend = cli::make_backend(config).value();
      for (const bool one_order : {false, true}) {
        auto link = link_ranks(*backend, *host);
        ASSERT_NE(link, nullptr);
        EXPECT_EQ(link->description(), "NCCL 2.27.3, small sums out of each other's memory");
        const auto device = make_device_communicator(
                                *backend, *host, {.widest_row = 60, .link = std::move(link), .one_order = one_order})
                                .value();
        constexpr int64_t kStride = 70;
        // The third of these has the second's columns too; rows beyond what is packed at once.
        const std::vector<comm::ColumnRange> columns = {{0, 20}, {20, 25}, {20, 40}};
        for (const int root : {comm::Communicator::kEverybody, 0, 1}) {
          constexpr int64_t kRows = 20000;
          std::vector<float> expected(static_cast<size_t>(kRows * kStride));
          for (size_t i = 0; i < expected.size(); ++i) {
            const auto column = static_cast<int64_t>(i) % kStride;
            const comm::ColumnRange& own = columns[static_cast<size_t>(rank)];
            const bool is_own = column >= own.first && column < own.first + own.count;
            expected[i] = is_own ? static_cast<float>(i) : -1.0f;
          }
          Buffer memory(backend->allocator(), expected.size() * sizeof(float));
          backend->upload(memory.data(), expected.data(), memory.bytes());
          device->gather_columns({memory.as<float>(), kRows, kStride}, columns, root);
          std::vector<float> found(expected.size());
          backend->download(found.data(), memory.data(), memory.bytes());
          host->gather_columns({expected.data(), kRows, kStride}, columns, root);
          EXPECT_EQ(found, expected);
        }
        // Few enough, at an odd place, and too many for the other cards' memory. Of one order by way of the host.
        for (const auto& [first, count] : {std::pair<size_t, size_t>{0, 100}, {0, 40'000}, {1, 100}, {0, 400'000}}) {
          SCOPED_TRACE(fmt::format("{} numbers from the {}th on, of one order: {}", count, first, one_order));
          const int sums = ops::cuda::nccl_sums();
          const int meetings = cuda_on_host::meetings_of_cards();
          host->barrier();
          std::vector<float> values(first + count);
          for (size_t i = 0; i < values.size(); ++i)
            values[i] = (rank == 1 ? 1e-4f : 0.37f) * static_cast<float>(i % 1000 + static_cast<size_t>(rank));
          Buffer memory(backend->allocator(), values.size() * sizeof(float));
          backend->upload(memory.data(), values.data(), memory.bytes());
          device->all_reduce({memory.as<float>() + first, count});
          backend->synchronise();
          host->all_reduce({values.data() + first, count});
          std::vector<float> found(values.size());
          backend->download(found.data(), memory.data(), memory.bytes());
          const bool is_small = first == 0 && count <= 40'000;
          if (is_small || one_order) {
            EXPECT_EQ(found, values);
          }
          EXPECT_EQ(ops::cuda::nccl_sums() > sums, !is_small && !one_order);
          EXPECT_EQ(cuda_on_host::meetings_of_cards() > meetings, is_small);
          host->barrier();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ops::cuda::offer_nccl(false);
}

// Memory that each plans by itself: the least is everybody's.
TEST_F(RanksOnCards, PlanByWhatTheirCardsHave) {
  EngineConfig config = cards_config(2, 1);
  config.num_gpu_blocks_override = 0;
  const auto executor = start_workers(config);
  ASSERT_TRUE(executor.ok()) << executor.status().message();
  EXPECT_GE((*executor)->memory().num_blocks, 8);
  EXPECT_EQ((*executor)->memory().max_num_batched_tokens, 32);
  EXPECT_THAT((*executor)->description(), HasSubstr("2 workers: cuda:0"));
  EXPECT_EQ(answer(**executor, kSteps).of[0].tokens.size(), kSteps);
}

TEST_F(RanksOnCards, AreRefusedWhereThereAreTooFew) {
  EngineConfig config = cards_config(3, 1);
  config.device = DeviceChoice::cuda(2);
  EXPECT_THAT(cli::make_executor(config).status().message(),
              HasSubstr("each worker has a card of its own, from cuda:2 on, and this machine has 4"));
}

}  // namespace
}  // namespace quire::runner
