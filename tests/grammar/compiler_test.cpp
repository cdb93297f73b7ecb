// The pool: what is compiled once, what is kept, and what takes too long.
#include "grammar/compiler.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "base/thread_pool.h"
#include "tests/grammar/grammar_support.h"

namespace quire::grammar {
namespace {

using namespace testing;  // NOLINT
using ::testing::HasSubstr;

class Nothing final : public TokenConstraint {
 public:
  std::unique_ptr<State> start() const override { return nullptr; }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }
};

StructuredOutput choice(const std::string& text) {
  return {.kind = Kind::kChoice, .choices = {text}};
}

// Compiles "slow..." when the gate opens, everything else at once, 100 bytes each.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    bell_.notify_all();
  }
  int count() {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  void wait_for_count(int count) {
    std::unique_lock lock(mutex_);
    bell_.wait(lock, [&] { return count_ >= count; });
  }
  CompilerOptions options() {
    CompilerOptions options;
    options.compile = [this](const StructuredOutput& output, const GrammarLimits&,
                             const std::shared_ptr<const GrammarVocabulary>&) -> Result<CompiledConstraint> {
      std::unique_lock lock(mutex_);
      ++count_;
      bell_.notify_all();
      if (output.choices.at(0).starts_with("slow")) bell_.wait(lock, [this] { return open_; });
      if (output.choices.at(0) == "bad") return invalid_argument("it is bad");
      return CompiledConstraint{std::make_shared<Nothing>(), 100};
    };
    return options;
  }

 private:
  std::mutex mutex_;
  std::condition_variable bell_;
  bool open_ = false;
  int count_ = 0;
};

std::unique_ptr<Compiler> compiler_with(CompilerOptions options) {
  return std::make_unique<Compiler>(*byte_level().tokenizer, byte_level().vocab_size, std::vector{byte_level().end},
                                    std::move(options));
}

using Promise = std::promise<Result<Constraint>>;

Compiler::Done keep(const std::shared_ptr<Promise>& promise) {
  return [promise](Result<Constraint> result) { promise->set_value(std::move(result)); };
}

TEST(Compiler, AStructuredOutputIsCompiledOnceAndARefusedOneIsNotKept) {
  Gate gate;
  const auto compiler = compiler_with(gate.options());
  const auto first = compiler->compile(choice("a"));
  EXPECT_EQ(*first, *compiler->compile(choice("a")));
  EXPECT_EQ(compiler->stats().hits, 1);
  EXPECT_EQ(gate.count(), 1);
  EXPECT_THAT(compiler->compile(choice("bad")).status().message(), HasSubstr("it is bad"));
  EXPECT_FALSE(compiler->compile(choice("bad")).ok());
  EXPECT_EQ(gate.count(), 3);
  EXPECT_EQ(compiler->stats().cached_constraints, 1);
}

TEST(Compiler, WhatDiffersInOneByteIsAnotherConstraint) {
  Gate gate;
  const auto compiler = compiler_with(gate.options());
  ASSERT_TRUE(compiler->compile({.kind = Kind::kChoice, .choices = {"a", "b"}}).ok());
  ASSERT_TRUE(compiler->compile({.kind = Kind::kChoice, .choices = {std::string("a\0b", 3)}}).ok());
  EXPECT_EQ(compiler->stats().hits, 0);
}

// G5
TEST(Compiler, TheCacheIsBoundedOverThousandsOfGrammars) {
  Gate gate;
  CompilerOptions options = gate.options();
  options.cache_bytes = 10000;
  const auto compiler = compiler_with(options);
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(compiler->compile(choice("output " + std::to_string(i))).ok());
    ASSERT_LE(compiler->stats().cached_bytes, options.cache_bytes);
  }
  EXPECT_GT(compiler->stats().cached_constraints, 10);
  // The last is there, the first is not.
  ASSERT_TRUE(compiler->compile(choice("output 4999")).ok());
  EXPECT_EQ(compiler->stats().hits, 1);
  ASSERT_TRUE(compiler->compile(choice("output 0")).ok());
  EXPECT_EQ(compiler->stats().hits, 1);
}

TEST(Compiler, WhoWaitsForTheSameConstraintGetsTheSame) {
  Gate gate;
  const auto compiler = compiler_with(gate.options());
  const auto one = std::make_shared<Promise>();
  const auto other = std::make_shared<Promise>();
  compiler->compile(choice("slow"), keep(one));
  gate.wait_for_count(1);
  compiler->compile(choice("slow"), keep(other));
  gate.open();
  EXPECT_EQ(*one->get_future().get(), *other->get_future().get());
  EXPECT_EQ(gate.count(), 1);
}

TEST(Compiler, TenantsTakeTurnsAndOnesFloodLeavesRoom) {
  Gate gate;
  CompilerOptions options = gate.options();
  options.max_waiting = 16;
  const auto compiler = compiler_with(options);
  std::mutex mutex;
  std::vector<std::string> order;  // of answers
  int refused = 0;
  const auto ask = [&](int32_t tenant, const std::string& output) {
    compiler->compile(choice(output), tenant, [&, output](const Result<Constraint>& result) {
      const std::lock_guard lock(mutex);
      if (result.ok()) {
        order.push_back(output);
      } else {
        ++refused;
      }
    });
  };
  ask(0, "slow");
  gate.wait_for_count(1);
  for (int i = 0; i < 20; ++i) ask(0, "flood " + std::to_string(i));
  EXPECT_EQ(refused, 13) << "one tenant may have half";
  ask(1, "other");
  ask(2, "flood 6");  // which another waits for already: it comes when either has its turn
  gate.open();
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return order.size();
  };
  while (count() < 10) std::this_thread::yield();
  EXPECT_THAT(std::vector(order.begin(), order.begin() + 5),
              ::testing::ElementsAre("slow", "other", "flood 6", "flood 6", "flood 0"));
}

TEST(Compiler, WhoWaitsForTheSameConstraintIsBoundedToo) {
  Gate gate;
  CompilerOptions options = gate.options();
  options.max_waiting = 8;
  const auto compiler = compiler_with(options);
  std::atomic<int> refused{0};
  std::atomic<int> answered{0};
  for (int i = 0; i < 100; ++i) {
    compiler->compile(choice("slow"), [&](const Result<Constraint>& result) {
      ++(result.status().code() == StatusCode::kResourceExhausted ? refused : answered);
    });
  }
  EXPECT_GE(refused, 92);
  gate.open();
  while (refused + answered < 100) std::this_thread::yield();
  EXPECT_GE(answered, 4);
}

Result<Constraint> compiled_for(Compiler& compiler, int32_t tenant, const std::string& text) {
  const auto promise = std::make_shared<Promise>();
  compiler.compile(choice(text), tenant, keep(promise));
  auto future = promise->get_future();
  if (future.wait_for(std::chrono::seconds(30)) != std::future_status::ready) return internal_error("nobody answers");
  return future.get();
}

TEST(Compiler, AGrammarThatTakesTooLongIsGivenUpAndOthersGoOn) {
  Gate gate;
  CompilerOptions options = gate.options();
  options.time_limit = std::chrono::milliseconds(1);
  options.max_overdue = 1;
  const auto compiler = compiler_with(options);
  EXPECT_EQ(compiled_for(*compiler, 0, "slow 1").status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(compiler->stats().overdue, 1);
  EXPECT_EQ(compiled_for(*compiler, 1, "slow 2").status().code(), StatusCode::kDeadlineExceeded);
  // Now as many are at it as may be: what is not in the cache is turned away.
  EXPECT_EQ(compiled_for(*compiler, 2, "slow 3").status().code(), StatusCode::kResourceExhausted);
  gate.open();
}

TEST(Compiler, ATenantWhoseGrammarsTakeTooLongLeavesRoomForOthers) {
  Gate gate;
  CompilerOptions options = gate.options();
  options.time_limit = std::chrono::milliseconds(1);
  options.max_overdue = 3;
  const auto compiler = compiler_with(options);
  EXPECT_EQ(compiled_for(*compiler, 0, "slow 1").status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(compiled_for(*compiler, 0, "slow 2").status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(compiled_for(*compiler, 0, "slow 3").status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(compiled_for(*compiler, 1, "slow 4").status().code(), StatusCode::kDeadlineExceeded) << "a thread was left";
  gate.open();
}

TEST(Compiler, WhenAllThatTookTooLongIsDoneAnyIsCompiledAgain) {
  Gate gate;
  CompilerOptions options = gate.options();
  options.time_limit = std::chrono::milliseconds(1);
  options.max_overdue = 0;  // no thread takes the place of the only one
  const auto compiler = compiler_with(options);
  EXPECT_EQ(compiled_for(*compiler, 0, "slow").status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(compiled_for(*compiler, 0, "other").status().code(), StatusCode::kResourceExhausted);
  gate.open();
  while (compiler->stats().overdue > 0) std::this_thread::yield();
  // Within a time limit of 1 ms it may be given up as well: it is answered.
  EXPECT_NE(compiled_for(*compiler, 0, "another").status().code(), StatusCode::kInternal);
}

TEST(Compiler, WhatTakesLongGivesWayAndWhatComesThenHasAnotherThread) {
  const int usual = getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()));
  if (usual > 8) GTEST_SKIP() << "this runs with so low a priority that there are too few below it";
  CompilerOptions options;
  options.long_from = std::chrono::milliseconds(1);
  std::vector<int32_t> threads;
  std::vector<int> niceness;  // at the end of each
  options.compile = [&](const StructuredOutput& output, const GrammarLimits&,
                        const std::shared_ptr<const GrammarVocabulary>&) -> Result<CompiledConstraint> {
    const auto own = [] { return getpriority(PRIO_PROCESS, 0); };
    threads.push_back(this_thread_number());
    if (output.choices.at(0).starts_with("long")) {
      while (own() <= usual + 5) std::this_thread::yield();
    }
    niceness.push_back(own());
    return CompiledConstraint{std::make_shared<Nothing>(), 100};
  };
  const auto compiler = compiler_with(options);
  std::thread([&] {
    give_way_to_other_threads(GivesWay::kAll);
    for (const char* text : {"long 1", "long 2"}) EXPECT_TRUE(compiled_for(*compiler, 0, text).ok()) << text;
  }).join();
  EXPECT_THAT(niceness, ::testing::Each(usual + 10)) << "whoever asks";
  EXPECT_TRUE(compiled_for(*compiler, 0, "short").ok());
  EXPECT_THAT(std::set(threads.begin(), threads.end()), ::testing::SizeIs(3)) << "none goes on with less than its due";
}

TEST(Compiler, OneThatGoesAnswersWhatWaits) {
  Gate gate;
  const auto begun = std::make_shared<Promise>();
  const auto waiting = std::make_shared<Promise>();
  auto compiler = compiler_with(gate.options());
  compiler->compile(choice("slow"), keep(begun));
  gate.wait_for_count(1);
  compiler->compile(choice("other"), keep(waiting));
  std::thread opens([&] { gate.open(); });
  compiler.reset();
  opens.join();
  EXPECT_TRUE(begun->get_future().get().ok());
  // Taken up after the first, or turned away: answered in any case.
  const auto result = waiting->get_future().get();
  EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kUnavailable);
}

}  // namespace
}  // namespace quire::grammar
