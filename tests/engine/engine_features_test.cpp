// What an engine keeps of its own: bounds, deadlines, several answers, the flight recorder, the trace.
#include <unistd.h>

#include <fstream>
#include <optional>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "engine/flight_recorder.h"
#include "engine/output.h"
#include "engine/trace.h"
#include "tests/engine/fake_executor.h"
#include "tests/suites/chosen_executor.h"

namespace quire::engine {
namespace {

using testing::HasSubstr;
namespace json = boost::json;

class EngineFeatures : public testing::Test {
 protected:
  void start(EngineConfig config = {}, int64_t num_blocks = 64) {
    auto executor = std::make_unique<FakeExecutor>(num_blocks, 512, config.max_num_batched_tokens);
    executor_ = executor.get();
    config.skip_tokenizer_init = true;
    auto engine = Engine::create(std::move(config), {}, suites::chosen(std::move(executor)));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  std::vector<std::unique_ptr<TokenStream>> submit(GenerationRequest request) {
    auto streams = engine_->submit(std::move(request));
    EXPECT_TRUE(streams.ok()) << streams.status().message();
    return streams.ok() ? std::move(*streams) : std::vector<std::unique_ptr<TokenStream>>();
  }
  static TokenEvent last_of(TokenStream& stream) {
    std::vector<TokenId> tokens;
    while (true) {
      TokenEvent event = stream.take();
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      if (event.finish == FinishReason::kNone) continue;
      event.tokens = std::move(tokens);
      return event;
    }
  }

  FakeExecutor* executor_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineFeatures, SeveralAnswersToOnePromptShareItsBlocks) {
  start();
  const std::vector<TokenId> prompt(100, 7);
  auto streams = submit({.prompt = prompt, .params = {.n = 4, .max_tokens = 30}});
  ASSERT_EQ(streams.size(), 4u);
  for (const auto& stream : streams) EXPECT_EQ(last_of(*stream).tokens.size(), 30u);
  EXPECT_EQ(executor_->num_prompt_tokens_computed(), 100 + 3) << "each further answer computes the last token alone";
}

TEST_F(EngineFeatures, ARequestBeyondItsTimeoutEndsWithAnErrorAndFreesItsBlocks) {
  start();
  executor_->hold();
  auto streams = submit({.prompt = {5, 6}, .params = {.max_tokens = 400}, .timeout = std::chrono::milliseconds(20)});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  executor_->release();
  const TokenEvent last = last_of(*streams.front());
  EXPECT_EQ(last.finish, FinishReason::kError);
  EXPECT_EQ(last.error.code(), StatusCode::kDeadlineExceeded);
  EXPECT_LT(last.tokens.size(), 400u);
}

TEST_F(EngineFeatures, TheEnginesOwnTimeoutHoldsForRequestsThatDoNotSay) {
  start({.request_timeout = 0.02});
  executor_->hold();
  auto streams = submit({.prompt = {5, 6}, .params = {.max_tokens = 400}});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  executor_->release();
  EXPECT_EQ(last_of(*streams.front()).error.code(), StatusCode::kDeadlineExceeded);
}

TEST_F(EngineFeatures, WaitingPromptTokensAreBounded) {
  start({.max_num_seqs = 1, .max_num_queued_tokens = 100});
  executor_->hold();
  auto running = submit({.prompt = {5}, .params = {.max_tokens = 4}});
  executor_->wait_for_step(0);
  auto waiting = submit({.prompt = std::vector<TokenId>(80, 6), .params = {.max_tokens = 4}});
  const Status refused = engine_->submit({.prompt = std::vector<TokenId>(30, 6), .params = {.max_tokens = 4}}).status();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("80 prompt tokens are waiting"));
  executor_->release();
  EXPECT_EQ(last_of(*waiting.front()).tokens.size(), 4u);
  EXPECT_EQ(
      last_of(*submit({.prompt = std::vector<TokenId>(30, 6), .params = {.max_tokens = 4}}).front()).tokens.size(), 4u)
      << "what ran is no longer waiting";
}

TEST_F(EngineFeatures, LogProbabilitiesAreCountedBeforeAdmission) {
  start({.max_logprobs = -1, .max_request_bytes = 1 << 20});
  // 1,001 entries of 16 bytes a token.
  const Status alone = engine_->submit({.prompt = {5}, .params = {.max_tokens = 100, .logprobs = -1}}).status();
  EXPECT_EQ(alone.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(alone.param(), "logprobs");
  executor_->hold();
  auto first = submit({.prompt = {5}, .params = {.max_tokens = 50, .logprobs = -1}});
  const Status beside = engine_->submit({.prompt = {5}, .params = {.max_tokens = 50, .logprobs = -1}}).status();
  EXPECT_EQ(beside.code(), StatusCode::kResourceExhausted);
  executor_->release();
  last_of(*first.front());
}

TEST_F(EngineFeatures, AWarmPrefixIsReportedAndForgottenOnReset) {
  start();
  const std::vector<TokenId> prompt(65, 9);
  const auto cached = [&] {
    auto streams = submit({.prompt = prompt, .params = {.max_tokens = 2}});
    const std::optional<int32_t> found = streams.front()->take().num_cached_tokens;
    return found.value_or(-1);
  };
  EXPECT_EQ(cached(), 0);
  EXPECT_EQ(cached(), 64);
  engine_->reset_prefix_cache();
  EXPECT_EQ(cached(), 0);
  auto salted = submit({.prompt = prompt, .params = {.max_tokens = 2}, .cache_salt = "mine"});
  EXPECT_EQ(salted.front()->take().num_cached_tokens, 0);
}

TEST_F(EngineFeatures, TheFlightRecorderKeepsStepsAndLives) {
  start({.flight_recorder_steps = 8});
  auto streams = submit({.prompt = {5, 6, 7}, .params = {.max_tokens = 20}, .label = "request-1"});
  last_of(*streams.front());
  streams = submit({.prompt = {5, 6}, .params = {.max_tokens = 1}, .label = "request-2"});
  last_of(*streams.front());
  // The record of the last step follows its answer.
  for (int i = 0; i < 1000 && engine_->stats().num_running > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const FlightRecorder& recorder = engine_->flight_recorder();
  EXPECT_EQ(recorder.steps(-1).at("steps").as_array().size(), 8u);
  EXPECT_EQ(recorder.steps(3).at("steps").as_array().size(), 3u);
  const json::object step = recorder.steps(1).at("steps").as_array().front().as_object();
  EXPECT_EQ(step.at("scheduled").as_array().size(), 1u);
  const auto life = recorder.request("request-1");
  ASSERT_TRUE(life.has_value());
  const json::object& answer = life->at("answers").as_array().front().as_object();
  EXPECT_EQ(answer.at("finish_reason").as_string(), "length");
  EXPECT_EQ(answer.at("output_tokens").as_int64(), 20);
  std::vector<std::string> events;
  for (const json::value& event : answer.at("events").as_array()) {
    events.emplace_back(event.at("event").as_string());
  }
  EXPECT_THAT(events, testing::ElementsAre("queued", "scheduled", "first_token", "finished"));
  EXPECT_FALSE(recorder.request("request").has_value());
  EXPECT_FALSE(recorder.request("").has_value());
}

// ---- a beam search that samples nothing ----

class ScoredBeams : public EngineFeatures {
 protected:
  // The last event of each, or none where nothing comes.
  static std::vector<std::optional<TokenEvent>> ends_of(const std::vector<std::unique_ptr<TokenStream>>& streams) {
    std::vector<std::optional<TokenEvent>> ends(streams.size());
    for (int i = 0; i < 1000; ++i) {
      bool all = true;
      for (size_t s = 0; s < streams.size(); ++s) {
        if (!ends[s]) ends[s] = streams[s]->try_take();
        all = all && ends[s].has_value();
      }
      if (all) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return ends;
  }
  static SamplingParams scored(int n) { return {.n = n, .max_tokens = 0, .use_beam_search = true}; }
};

TEST_F(ScoredBeams, EveryAnswerOfABeamSearchOfNoTokensEnds) {
  start();
  for (const int n : {1, 2, 5}) {
    auto streams = submit({.prompt = {5, 6, 7}, .params = scored(n)});
    ASSERT_EQ(streams.size(), static_cast<size_t>(n));
    for (const std::optional<TokenEvent>& end : ends_of(streams)) {
      ASSERT_TRUE(end.has_value()) << "an answer never ends";
      EXPECT_EQ(end->finish, FinishReason::kLength);
      EXPECT_TRUE(end->tokens.empty());
    }
  }
  EXPECT_EQ(engine_->stats().num_running + engine_->stats().num_waiting, 0);
}

TEST_F(ScoredBeams, CancelAndTimeoutReachEachOfItsAnswers) {
  start();
  executor_->hold();
  auto busy = submit({.prompt = {9}, .params = {.max_tokens = 2}});
  executor_->wait_for_step(0);
  auto cancelled = submit({.prompt = {5, 6, 7}, .params = scored(3)});
  auto late = submit({.prompt = {5, 6, 7}, .params = scored(3), .timeout = std::chrono::milliseconds(1)});
  for (const auto& stream : cancelled) stream->cancel();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  executor_->release();
  for (const std::optional<TokenEvent>& end : ends_of(cancelled)) {
    ASSERT_TRUE(end.has_value()) << "the cancel did not reach it";
    EXPECT_EQ(end->finish, FinishReason::kAbort);
  }
  for (const std::optional<TokenEvent>& end : ends_of(late)) {
    ASSERT_TRUE(end.has_value()) << "the timeout did not reach it";
    EXPECT_EQ(end->error.code(), StatusCode::kDeadlineExceeded);
  }
}

// ---- the trace ----

class TraceTest : public EngineFeatures {
 protected:
  std::string record(EngineConfig config) {
    // Tests run side by side.
    config.trace_file = fmt::format("{}/quire-{}-{}.jsonl", testing::TempDir(), getpid(),
                                    testing::UnitTest::GetInstance()->current_test_info()->name());
    const std::string path = config.trace_file;
    start(std::move(config), /*num_blocks=*/20);
    std::vector<std::unique_ptr<TokenStream>> streams;
    for (TokenId i = 0; i < 12; ++i) {
      auto more = submit({.prompt = std::vector<TokenId>(20 + 3 * static_cast<size_t>(i % 3), 50 + i % 2),
                          .params = {.n = 1 + i % 3, .max_tokens = 60}});
      std::ranges::move(more, std::back_inserter(streams));
    }
    streams[3]->cancel();
    for (const auto& stream : streams) last_of(*stream);
    engine_.reset();
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  static Result<ReplayReport> replayed(const std::string& text) {
    std::istringstream stream(text);
    return replay(stream);
  }
};

TEST_F(TraceTest, ARecordedLifeReplaysPlanByPlan) {
  const std::string text = record({.max_num_seqs = 8, .max_num_batched_tokens = 64});
  auto report = replayed(text);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->difference, "");
  EXPECT_EQ(report->num_requests, 24);
  EXPECT_GT(report->num_steps, 50);
  EXPECT_GT(report->last.preemptions, 0u);
}

TEST_F(TraceTest, PlansAheadReplayToo) {
  auto report = replayed(record({.max_num_seqs = 8, .max_num_batched_tokens = 64, .num_scheduler_steps = 3}));
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_EQ(report->difference, "");
}

TEST_F(TraceTest, ADifferentPlanIsFoundAndShown) {
  std::string text = record({.max_num_seqs = 8});
  const size_t place = text.find("\"digest\":");
  ASSERT_NE(place, std::string::npos);
  text[place + 10] = text[place + 10] == '1' ? '2' : '1';
  auto report = replayed(text);
  ASSERT_TRUE(report.ok()) << report.status().message();
  EXPECT_THAT(report->difference, HasSubstr("step 0"));
}

TEST_F(TraceTest, AFileThatIsNoTraceIsRefusedByLineAndATruncatedOneEndsThere) {
  const std::string text = record({.max_num_seqs = 8});
  EXPECT_EQ(replayed("hello\n").status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(replayed("{\"add\":{}}\n{}\n").status().message(), HasSubstr("line 1"));
  auto truncated = replayed(text.substr(0, text.size() / 2));
  ASSERT_TRUE(truncated.ok()) << truncated.status().message();
  EXPECT_EQ(truncated->difference, "");
  EXPECT_GT(truncated->num_steps, 0);
}

}  // namespace
}  // namespace quire::engine
