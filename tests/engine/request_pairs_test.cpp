// Every pair of extreme parameters, sent to an engine with a real vocabulary and tokenizer: what it holds for the
// request stays under what cost_of() says, and no step takes long. A pair that may not be is refused by name.
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <boost/json.hpp>

#include "base/thread_clock.h"
#include "engine/engine.h"
#include "engine/request_cost.h"
#include "ops/cpu/cpu_backend.h"
#include "runner/local_executor.h"
#include "runner/text_files.h"
#include "tests/slowdown.h"
#include "tests/suites/allocations.h"
#include "tests/suites/chosen_executor.h"

namespace quire::engine {
namespace {

namespace json = boost::json;

constexpr int64_t kVocabulary = 32'768;
constexpr int32_t kContext = 2048;
constexpr int32_t kMostAnswers = 128;
// What the engine's buffers may still grow by, whoever grows them, and what answers' tokens take.
constexpr int64_t kSlackBytes = 1 << 20;
// Of cached prefixes, breakers, constraints and the lives of the last requests, each of which has a bound.
constexpr int64_t kCachesBytes = 4 << 20;
// Of the engine's thread, in a step; a hundred times what a sound one takes, so that a busy machine does not matter.
constexpr double kMostStepSeconds = 2.0 * kSlowdown;

// The characters that stand for bytes in a byte-level vocabulary (Radford et al., 2019).
std::string byte_character(int byte) {
  static const std::vector<int> table = [] {
    std::vector<int> points(256);
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool shown = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      points[static_cast<size_t>(b)] = shown ? b : next++;
    }
    return points;
  }();
  const int point = table[static_cast<size_t>(byte)];
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
}

json::object tokenizer_of_all_bytes() {
  json::object vocabulary;
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_character(byte)] = byte;
  json::array merges;
  for (int64_t id = 256; id < kVocabulary; ++id) vocabulary["token" + std::to_string(id)] = id;
  const json::object bytes{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", bytes},
          {"post_processor", nullptr},
          {"decoder", bytes},
          {"model", json::object{{"type", "BPE"}, {"vocab", std::move(vocabulary)}, {"merges", std::move(merges)}}}};
}

// A model of random weights, one small layer, with a folder of its own.
class SmallModel {
 public:
  SmallModel() : folder_(std::filesystem::path(testing::TempDir()) / "quire-request-pairs") {
    std::filesystem::create_directories(folder_);
    const json::object config{{"architectures", {"LlamaForCausalLM"}},
                              {"vocab_size", kVocabulary},
                              {"hidden_size", 32},
                              {"intermediate_size", 64},
                              {"num_hidden_layers", 1},
                              {"num_attention_heads", 2},
                              {"max_position_embeddings", kContext},
                              {"eos_token_id", 0}};
    std::ofstream(folder_ / "config.json") << json::serialize(config);
    std::ofstream(folder_ / "tokenizer.json") << json::serialize(tokenizer_of_all_bytes());
  }
  ~SmallModel() { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Engine> start() const {
    EngineConfig config{.model = folder_.string(), .load_format = LoadFormat::kDummy};
    config.num_gpu_blocks_override = 4096;
    config.max_num_seqs = kMostAnswers;
    config.max_num_batched_tokens = 2048;
    config.flight_recorder_steps = 16;
    auto backend = ops::make_cpu_backend();
    EXPECT_TRUE(backend.ok());
    auto executor = runner::make_local_executor(config, std::move(*backend));
    EXPECT_TRUE(executor.ok()) << executor.status().message();
    auto engine = Engine::create(config, Engine::open_text(config).value(), suites::chosen(std::move(*executor)),
                                 nullptr, Drive::kCaller);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? std::move(*engine) : nullptr;
  }

 private:
  std::filesystem::path folder_;
};

std::vector<TokenId> ids_from(TokenId begin, int64_t count) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = begin + static_cast<TokenId>(i);
  return ids;
}

struct Extreme {
  const char* name;
  std::function<void(GenerationRequest&)> set;
};

std::vector<Extreme> extremes() {
  using R = GenerationRequest;
  return {
      {"n", [](R& r) { r.params.n = kMostAnswers; }},
      {"best_of", [](R& r) { r.params.best_of = kMostAnswers; }},
      {"beams", [](R& r) { r.params.use_beam_search = true, r.params.beam_width = kMostAnswers; }},
      {"stop_token_ids", [](R& r) { r.params.stop_token_ids = ids_from(1, kVocabulary - 2); }},
      {"min_tokens", [](R& r) { r.params.min_tokens = 6; }},
      {"logit_bias",
       [](R& r) {
         for (TokenId id = 0; id < kVocabulary; ++id) r.params.logit_bias.emplace_back(id, 1.0f);
       }},
      {"allowed_token_ids", [](R& r) { r.params.allowed_token_ids = ids_from(256, kVocabulary - 256); }},
      {"bad_words",
       [](R& r) {
         for (int i = 0; i < 500; ++i) r.params.bad_words.push_back("word " + std::to_string(i));
       }},
      {"dry", [](R& r) { r.params.dry_multiplier = 1, r.params.dry_allowed_length = 0; }},
      {"dry breakers",
       [](R& r) {
         r.params.dry_multiplier = 1;
         r.params.dry_sequence_breakers.clear();
         for (char c = 'A'; c < 'A' + 26; ++c) r.params.dry_sequence_breakers.emplace_back(1, c);
       }},
      {"penalties",
       [](R& r) { r.params.repetition_penalty = 1.3f, r.params.presence_penalty = 1, r.params.frequency_penalty = 1; }},
      {"logprobs", [](R& r) { r.params.logprobs = 20; }},
      {"prompt_logprobs", [](R& r) { r.params.prompt_logprobs = 20; }},
      {"long prompt", [](R& r) { r.prompt = ids_from(300, kContext - 16); }},
      {"truncated prompt", [](R& r) { r.prompt = ids_from(300, 20'000), r.params.truncate_prompt_tokens = 1000; }},
      {"structured output",
       [](R& r) {
         r.params.structured_output = StructuredOutput{.kind = StructuredOutput::Kind::kRegex, .text = "[a-z ]{1,300}"};
       }},
      {"greedy", [](R& r) { r.params.temperature = 0; }},
      {"typical_p", [](R& r) { r.params.typical_p = 0.5f; }},
      {"mirostat", [](R& r) { r.params.mirostat = 2; }},
      {"every filter",
       [](R& r) {
         r.params.top_p = 0.9f, r.params.top_k = 30'000, r.params.min_p = 0.001f, r.params.top_n_sigma = 3;
         r.params.xtc_probability = 0.5f, r.params.dynatemp_range = 0.5f;
       }},
      {"no answer", [](R& r) { r.params.max_tokens = 0; }},
      {"receipt", [](R& r) { r.params.deterministic = true; }},
      {"repetition detection",
       [](R& r) {
         r.params.repetition_detection =
             RepetitionDetection{.max_pattern_size = 2048, .min_pattern_size = 1, .min_count = 2};
       }},
  };
}

struct Seen {
  int64_t bytes = 0;
  int64_t priced = 0;
  int64_t excess = 0;
  double step_seconds = 0;
  int64_t step_work = 0;
};

class RequestPairs : public testing::Test {
 protected:
  void SetUp() override {
    engine_ = model_.start();
    ASSERT_NE(engine_, nullptr);
  }

  static GenerationRequest ordinary() {
    GenerationRequest request;
    request.prompt = ids_from(300, 8);
    request.params.max_tokens = 6;
    request.params.seed = 1;
    request.params.ignore_eos = true;
    return request;
  }

  // Runs it to its end with nobody reading.
  Seen run(GenerationRequest request, const std::string& name) {
    Engine& engine = *engine_;
    Seen seen;
    const RequestCost cost = engine.cost_of(request.params, static_cast<int64_t>(request.prompt.size()));
    const int64_t before = live_bytes();
    auto streams = engine.submit(std::move(request));
    if (!streams.ok()) {
      EXPECT_EQ(streams.status().code(), StatusCode::kInvalidArgument) << name << ": " << streams.status().message();
      EXPECT_FALSE(streams.status().param().empty()) << name << ": " << streams.status().message();
      ++num_refused_;
      return seen;
    }
    seen.priced = cost.heap_bytes;
    seen.step_work = cost.step_work;
    while (engine.has_work()) {
      const double begun = thread_seconds();
      EXPECT_TRUE(engine.step().ok());
      seen.step_seconds = std::max(seen.step_seconds, thread_seconds() - begun);
      seen.bytes = std::max(seen.bytes, live_bytes() - before);
    }
    for (const auto& stream : *streams) {
      while (stream->take().finish == FinishReason::kNone) {
      }
    }
    return seen;
  }

  void warm_up();
  void expect_within_bounds(std::span<const Extreme* const> extremes);
  void expect_nothing_left(int64_t before);

  const SmallModel model_;
  std::unique_ptr<Engine> engine_;
  const std::vector<Extreme> all_ = extremes();
  int num_refused_ = 0;
  Seen worst_;
  std::string of_bytes_, of_time_;
};

// Buffers grow to what the largest request needs, and stay.
void RequestPairs::warm_up() {
  for (const char* largest : {"n", "beams"}) {
    GenerationRequest request = ordinary();
    for (const Extreme& one : all_) {
      if (std::string_view(one.name) == largest) one.set(request);
    }
    request.params.logprobs = 20;
    run(std::move(request), "warm-up");
  }
  num_refused_ = 0;
  worst_ = {};
}

void RequestPairs::expect_within_bounds(std::span<const Extreme* const> extremes) {
  GenerationRequest request = ordinary();
  std::string name;
  for (const Extreme* one : extremes) {
    one->set(request);
    name += (name.empty() ? "" : " and ") + std::string(one->name);
  }
  const Seen seen = run(std::move(request), name);
  EXPECT_LE(seen.bytes, seen.priced + kSlackBytes) << name;
  EXPECT_LT(seen.step_seconds, kMostStepSeconds) << name;
  worst_.excess = std::max(worst_.excess, seen.bytes - seen.priced);
  if (seen.bytes > worst_.bytes) worst_.bytes = seen.bytes, worst_.priced = seen.priced, of_bytes_ = name;
  if (seen.step_seconds > worst_.step_seconds) {
    worst_.step_seconds = seen.step_seconds, worst_.step_work = seen.step_work, of_time_ = name;
  }
}

void RequestPairs::expect_nothing_left(int64_t before) {
  EXPECT_EQ(engine_->stats().num_running, 0);
  EXPECT_LE(live_bytes() - before, kCachesBytes) << "what is left when all are gone";
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  std::printf(
      "most held: %.2f MiB (priced at %.2f) by %s; over its price %.2f MiB; longest step: %.1f ms of the engine's "
      "thread, "
      "%.0f million numbers, of %s; %d refused\n",
      mib(worst_.bytes), mib(worst_.priced), of_bytes_.c_str(), mib(worst_.excess), worst_.step_seconds * 1e3,
      static_cast<double>(worst_.step_work) / 1e6, of_time_.c_str(), num_refused_);
}

TEST_F(RequestPairs, HoldNoMoreThanTheyArePricedAtAndNoStepTakesLong) {
  warm_up();
  const int64_t before = live_bytes();
  for (size_t i = 0; i < all_.size(); ++i) {
    for (size_t j = i; j < all_.size(); ++j) expect_within_bounds(std::array{&all_[i], &all_[j]});
  }
  EXPECT_LT(num_refused_, 80) << "most pairs are valid";
  expect_nothing_left(before);
}

TEST_F(RequestPairs, ThreeAtOnceByChanceDoNotEither) {
  warm_up();
  const int64_t before = live_bytes();
  std::mt19937 random(20261125);
  std::uniform_int_distribution<size_t> any(0, all_.size() - 1);
  for (int i = 0; i < 100; ++i)
    expect_within_bounds(std::array{&all_[any(random)], &all_[any(random)], &all_[any(random)]});
  expect_nothing_left(before);
}

}  // namespace
}  // namespace quire::engine
