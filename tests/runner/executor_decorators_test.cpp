// Executors that wrap another: what they do not change is the other's.
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>

#include "runner/async_executor.h"
#include "runner/executor.h"
#include "runner/serialising_executor.h"
#include "runner/turns.h"

namespace quire::runner {
namespace {

// What the executor inside was told, which outlives it.
struct Told {
  std::thread::id bound;
  int num_bindings = 0;
  std::shared_ptr<const ConstraintSource> constraints;
  std::deque<uint64_t> steps;  // submitted and not collected
  OffloadOrders orders;
  std::function<void()> notify;
};

// Answers everything as no other does.
class ProbeExecutor final : public Executor {
 public:
  ProbeExecutor(Told& told, bool overlaps) : told_(told), overlaps_(overlaps) {
    model_.vocab_size = 4711;
    memory_.num_blocks = 1302;
  }
  const ModelConfig& model() const override { return model_; }
  const MemoryPlan& memory() const override { return memory_; }
  const std::string& description() const override { return description_; }
  void bind_thread() override {
    told_.bound = std::this_thread::get_id();
    ++told_.num_bindings;
  }
  void use_constraints(std::shared_ptr<const ConstraintSource> constraints) override {
    told_.constraints = std::move(constraints);
  }
  std::vector<StoredBlock> take_stored() override { return {{.id = 8, .text = {.node = 9}}}; }
  void order(OffloadOrders orders) override { told_.orders = std::move(orders); }
  OffloadReports take_reports() override { return {.fetched = {{1, true}}, .written = {{2, false}}, .dropped = {3}}; }
  void on_reports(std::function<void()> notify) override { told_.notify = std::move(notify); }
  bool overlaps() const override { return overlaps_; }
  void submit(StepPlan plan) override { told_.steps.push_back(plan.step); }
  Result<ExecutedStep> collect() override {
    const uint64_t step = told_.steps.front();
    told_.steps.pop_front();
    if (step == kFails) return internal_error("the worker is gone");
    ExecutedStep done;
    done.result.step = step;
    done.result.sequences.push_back({.id = step + 1, .tokens = {static_cast<TokenId>(step) + 2}});
    done.timings = {.prepare = 1, .swap = 2, .forward = 3, .sample = 4, .computed = 5, .wait = 6, .replayed = true};
    done.timings.ahead = true;
    done.timings.host_rows = 7;
    done.timings.draw_bytes = 8;
    done.timings.collect = 9;
    done.timings.constraints = 10;
    return done;
  }
  static constexpr uint64_t kFails = 99;

 private:
  Told& told_;
  const bool overlaps_;
  ModelConfig model_;
  MemoryPlan memory_;
  std::string description_ = "a probe";
};

struct Decorator {
  std::string name;
  std::unique_ptr<Executor> (*make)(std::unique_ptr<Executor>);
  bool always_overlaps = false;
  bool has_thread = false;  // on which the executor inside does its work
};

class ExecutorDecorators : public testing::TestWithParam<Decorator> {
 protected:
  std::unique_ptr<Executor> wrap(bool overlaps = false) {
    return GetParam().make(std::make_unique<ProbeExecutor>(told_, overlaps));
  }
  static StepPlan plan(uint64_t step) {
    StepPlan made;
    made.step = step;
    return made;
  }

  Told told_;
};

TEST_P(ExecutorDecorators, SayOfModelMemoryAndDeviceWhatTheExecutorInsideSays) {
  const auto executor = wrap();
  EXPECT_EQ(executor->model().vocab_size, 4711);
  EXPECT_EQ(executor->memory().num_blocks, 1302);
  EXPECT_EQ(executor->description(), "a probe");
}

TEST_P(ExecutorDecorators, CarryOrdersOfBlocksBeyondThePoolAndReportsOfThem) {
  const auto executor = wrap();
  EXPECT_EQ(executor->take_stored().at(0).text.node, 9u);
  int notified = 0;
  executor->on_reports([&] { ++notified; });
  executor->order({.clear = true,
                   .fetches = {{4, 5}},
                   .writes = {{.slot = 6, .block = {.id = 7, .text = {.salt = "s", .tokens = {1, 2}}}}}});
  EXPECT_TRUE(told_.orders.clear);
  EXPECT_EQ(told_.orders.fetches.at(0).slot, 5);
  EXPECT_EQ(told_.orders.writes.at(0).block.text.salt, "s");
  EXPECT_EQ(told_.orders.writes.at(0).block.text.tokens.size(), 2u);
  told_.notify();
  EXPECT_EQ(notified, 1);
  const OffloadReports reports = executor->take_reports();
  EXPECT_TRUE(reports.fetched.at(0).ok);
  EXPECT_FALSE(reports.written.at(0).ok);
  EXPECT_EQ(reports.dropped.at(0), 3u);
}

// Allows token 3 alone.
class OnlyThree final : public TokenConstraint {
 public:
  std::unique_ptr<State> start() const override { return std::make_unique<Three>(); }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }

 private:
  struct Three final : State {
    std::unique_ptr<State> clone() const override { return std::make_unique<Three>(*this); }
    bool allowed(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0U);
      mask[0] = 8;
      return true;
    }
    bool accept(TokenId token) override { return token == 3; }
  };
};

TEST_P(ExecutorDecorators, FindTheConstraintsOfTheEngine) {
  const auto executor = wrap();
  const auto table = std::make_shared<ConstraintTable>();
  executor->use_constraints(table);
  const auto held = table->add(std::make_shared<const OnlyThree>());
  ASSERT_NE(told_.constraints, nullptr);
  const auto masks = told_.constraints->find(held->id);
  ASSERT_NE(masks, nullptr);
  const auto state = masks->start();
  std::vector<uint32_t> mask(2, 77);
  EXPECT_TRUE(state->allowed(mask));
  EXPECT_EQ(mask, (std::vector<uint32_t>{8, 0}));
  EXPECT_TRUE(state->accept(3));
  EXPECT_FALSE(state->accept(4));
  EXPECT_EQ(told_.constraints->find(held->id + 1), nullptr);
}

TEST_P(ExecutorDecorators, OverlapWhereTheExecutorInsideDoes) {
  EXPECT_TRUE(wrap(true)->overlaps());
  EXPECT_EQ(wrap(false)->overlaps(), GetParam().always_overlaps);
}

TEST_P(ExecutorDecorators, BindTheThreadThatTheExecutorInsideIsCalledOn) {
  const auto executor = wrap();
  executor->bind_thread();
  executor->submit(plan(1));
  ASSERT_TRUE(executor->collect().ok());
  EXPECT_EQ(told_.num_bindings, 1);
  EXPECT_EQ(told_.bound != std::this_thread::get_id(), GetParam().has_thread);
}

TEST_P(ExecutorDecorators, GiveStepsAndTheirTimingsInOrder) {
  const auto executor = wrap();
  executor->bind_thread();
  executor->submit(plan(3));
  executor->submit(plan(4));
  for (const uint64_t step : {3u, 4u}) {
    const auto done = executor->collect();
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(done->result.step, step);
    ASSERT_EQ(done->result.sequences.size(), 1u);
    EXPECT_EQ(done->result.sequences.front().id, step + 1);
    EXPECT_EQ(done->result.sequences.front().tokens, std::vector<TokenId>{static_cast<TokenId>(step) + 2});
    const StepTimings& timings = done->timings;
    const std::vector<double> seconds = {timings.prepare,  timings.swap, timings.forward, timings.sample,
                                         timings.computed, timings.wait, timings.collect, timings.constraints};
    EXPECT_EQ(seconds, (std::vector<double>{1, 2, 3, 4, 5, 6, 9, 10}));
    EXPECT_TRUE(timings.replayed && timings.ahead);
    EXPECT_EQ(timings.host_rows, 7);
    EXPECT_EQ(timings.draw_bytes, 8);
  }
}

TEST_P(ExecutorDecorators, HandOnTheFailureOfTheWorker) {
  const auto executor = wrap();
  executor->submit(plan(ProbeExecutor::kFails));
  EXPECT_EQ(executor->collect().status().message(), "the worker is gone");
}

std::unique_ptr<Executor> takes_turns(std::unique_ptr<Executor> executor) {
  return make_turn_taking_executor(std::move(executor), std::make_shared<Turns>());
}

INSTANTIATE_TEST_SUITE_P(
    All, ExecutorDecorators,
    testing::Values(Decorator{.name = "turns", .make = takes_turns},
                    Decorator{
                        .name = "async", .make = make_async_executor, .always_overlaps = true, .has_thread = true},
                    Decorator{.name = "serialising", .make = make_serialising_executor}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire::runner
