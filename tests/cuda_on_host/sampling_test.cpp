// Tokens and log-probabilities of requests that edit their logits, or want to know of them, on a card, or on a host
// that emulates one, beside those of the CPU's engine; and that the logits stayed on the card.
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>

#include "engine/engine.h"
#include "engine/flight_recorder.h"
#include "grammar/compiler.h"
#include "quire/llm.h"
#include "tests/cards/needs_card.h"
#include "tests/runner/same_logprobs.h"

namespace quire {
namespace {

class SamplingOnCard : public cards::NeedsCard {};

constexpr int64_t kVocabSize = 601;  // no multiple of a mask's word
constexpr TokenId kEnd = 0;          // of the tokenizer that constraints are made with

std::string read_file(const std::string& name) {
  std::ifstream file(std::string(QUIRE_TEST_DATA) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The tiny model's shape with a vocabulary that has room for a tokenizer's; random weights.
std::string wider_llama() {
  boost::json::object shape = boost::json::parse(read_file("e2e/tiny/llama/config.json")).as_object();
  shape["vocab_size"] = kVocabSize;
  const std::string folder = testing::TempDir() + "wider_llama";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << boost::json::serialize(shape);
  return folder;
}

std::shared_ptr<const TokenConstraint> compiled(const StructuredOutput& output) {
  static const auto tokenizer = text::Tokenizer::from_json(read_file("tokenizers/small_bpe.json")).value();
  static const auto vocabulary =
      std::make_shared<const grammar::GrammarVocabulary>(*tokenizer, kVocabSize, std::vector{kEnd}, false);
  auto done = grammar::compile_constraint(output, {}, vocabulary);
  EXPECT_TRUE(done.ok()) << done.status().message();
  return done->constraint;
}

struct Request {
  const char* name;
  SamplingParams params;
  bool by_host = false;
  std::shared_ptr<const TokenConstraint> output;
};

std::vector<Request> requests() {
  std::vector<TokenId> many;  // that come up, and are kept from it
  for (TokenId id = 0; id < kVocabSize; id += 2) many.push_back(id);
  std::vector<std::vector<TokenId>> words;
  for (TokenId id = 0; id < kVocabSize; id += 3) words.push_back({id});
  for (TokenId id = 1; id < kVocabSize; id += 3) words.push_back({id + 1, id});
  std::vector<std::pair<TokenId, float>> biases;
  for (TokenId id = 0; id < kVocabSize; id += 5) biases.emplace_back(id, 0.02f * static_cast<float>(id % 300));
  const auto regex = compiled({.kind = StructuredOutput::Kind::kRegex, .text = "[a-f]{3}(-[0-9]{1,4}){2,9}"});
  const auto schema = compiled(
      {.kind = StructuredOutput::Kind::kJsonSchema,
       .text =
           R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a","b"]})"});
  const SamplingParams greedy{.temperature = 0, .max_tokens = 12, .ignore_eos = true};
  std::vector<Request> list;
  const auto add = [&](const char* name, const std::function<void(SamplingParams&)>& set) {
    list.push_back({name, greedy});
    list.back().params.seed = 1000 + list.size();
    set(list.back().params);
  };
  add("plain", [](SamplingParams&) {});
  add("drawn", [](SamplingParams& p) { p.temperature = 0.8f, p.top_p = 0.9f; });
  add("logprobs", [](SamplingParams& p) { p.logprobs = 0; });
  add("drawn with logprobs", [](SamplingParams& p) { p.temperature = 1, p.logprobs = 5; });
  add("repetition and logprobs", [](SamplingParams& p) { p.repetition_penalty = 1.4f, p.logprobs = 5; });
  add("frequency, presence", [](SamplingParams& p) {
    p.temperature = 0.9f;
    p.frequency_penalty = 0.4f;
    p.presence_penalty = -0.3f;
  });
  add("biases", [&](SamplingParams& p) { p.logit_bias = biases, p.logprobs = 0; });
  add("bad words", [&](SamplingParams& p) { p.bad_words_ids = words, p.logprobs = 1; });
  add("min_tokens", [&](SamplingParams& p) {
    p.temperature = 1;
    p.min_tokens = 4;
    p.stop_token_ids = many;
  });
  add("allowed", [&](SamplingParams& p) { p.allowed_token_ids = many, p.repetition_penalty = 2, p.logprobs = 20; });
  add("allowed, drawn", [&](SamplingParams& p) { p.allowed_token_ids = many, p.temperature = 1, p.top_p = 0.7f; });
  add("single bad words", [&](SamplingParams& p) {
    for (const std::vector<TokenId>& word : words) {
      if (word.size() == 1) p.bad_words_ids.push_back(word);
    }
  });
  add("prompt logprobs", [](SamplingParams& p) { p.prompt_logprobs = 3, p.logprobs = 2; });
  add("regex", [](SamplingParams& p) { p.ignore_eos = false; });
  list.back().output = regex;
  add("schema, drawn", [](SamplingParams& p) {
    p.ignore_eos = false;
    p.temperature = 1;
    p.logprobs = 3;
    p.frequency_penalty = 0.5f;
    p.min_tokens = 5;
    p.max_tokens = 30;
  });
  list.back().output = schema;
  add("everything", [&](SamplingParams& p) {
    p.logit_bias = biases;
    p.bad_words_ids = words;
    p.allowed_token_ids = many;
    p.min_tokens = 6;
    p.stop_token_ids = {2, 4, 8, 16, 32, 64, 128, 256, 512};
    p.repetition_penalty = 0.8f;
    p.presence_penalty = 0.7f;
    p.logprobs = 4;
  });
  add("what only the host does", [](SamplingParams& p) { p.temperature = 1, p.typical_p = 0.8f, p.logprobs = 1; });
  list.back().by_host = true;
  return list;
}

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<PositionLogprobs> logprobs;
  std::vector<PositionLogprobs> prompt_logprobs;
};

Answer read(engine::TokenStream& stream) {
  Answer answer;
  while (true) {
    TokenEvent event = stream.take();
    EXPECT_TRUE(event.error.ok()) << event.error.message();
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    std::ranges::move(event.logprobs, std::back_inserter(answer.logprobs));
    std::ranges::move(event.prompt_logprobs, std::back_inserter(answer.prompt_logprobs));
    if (event.finish != FinishReason::kNone) return answer;
  }
}

// All at once. host_rows: of all steps.
std::vector<Answer> answers(const std::function<void(EngineConfig&)>& set, const std::vector<Request>& requests,
                            int64_t& host_rows, int64_t& steps_ahead) {
  EngineConfig config{.model = wider_llama(), .skip_tokenizer_init = true, .num_gpu_blocks_override = 256};
  config.load_format = LoadFormat::kDummy;
  config.threads = 2;
  config.max_num_batched_tokens = 32;  // a step of so many is run at start, which takes an emulated device a while
  config.max_num_seqs = 12;            // some wait
  config.enable_prefix_caching = false;
  set(config);
  auto llm = LLM::create(config);
  EXPECT_TRUE(llm.ok()) << llm.status().message();
  if (!llm.ok()) return {};
  std::vector<std::unique_ptr<engine::TokenStream>> streams;
  for (size_t i = 0; i < requests.size(); ++i) {
    engine::GenerationRequest request{.prompt = {}, .params = requests[i].params};
    request.prepared = (*llm)->engine().prepare(requests[i].params, true, 0, requests[i].output).value();
    for (TokenId id = 0; id < 9; ++id) request.prompt.push_back(1 + (static_cast<TokenId>(i) + 31 * id) % 500);
    auto submitted = (*llm)->engine().submit(std::move(request));
    EXPECT_TRUE(submitted.ok()) << requests[i].name << ": " << submitted.status().message();
    if (!submitted.ok()) return {};
    streams.push_back(std::move(submitted->front()));
  }
  std::vector<Answer> read_answers;
  for (const auto& stream : streams) read_answers.push_back(read(*stream));
  host_rows = 0;
  steps_ahead = 0;
  const boost::json::object steps = (*llm)->engine().flight_recorder().steps(-1);
  for (const boost::json::value& step : steps.at("steps").as_array()) {
    host_rows += step.at("rows_sampled_on_host").as_int64();
    steps_ahead += step.at("launched_ahead").as_bool() ? 1 : 0;
  }
  return read_answers;
}

// However the card goes about it, the host looks at the rows of those requests alone that want it to.
void expect_the_cpus(const std::vector<Request>& all) {
  int64_t host_rows = 0;
  int64_t steps_ahead = 0;
  const auto on_cpu = [](EngineConfig& config) { config.device = DeviceChoice::cpu(); };
  const std::vector<Answer> expected = answers(on_cpu, all, host_rows, steps_ahead);
  ASSERT_EQ(expected.size(), all.size());
  int64_t num_tokens = 0;
  int64_t by_host = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto count = static_cast<int64_t>(expected[i].tokens.size());
    EXPECT_GT(count, 0) << all[i].name;
    num_tokens += count;
    by_host += all[i].by_host ? count : 0;
  }
  EXPECT_GE(host_rows, num_tokens);
  for (const int variant : {0, 1, 2}) {
    SCOPED_TRACE(variant == 0 ? "one step at a time" : variant == 1 ? "async, recorded" : "async, in chunks");
    const auto set = [&](EngineConfig& config) {
      config.device = DeviceChoice::cuda();
      config.async_scheduling = variant > 0;
      config.enforce_eager = variant != 1;
      if (variant == 2) config.max_num_batched_tokens = 13;
    };
    const std::vector<Answer> found = answers(set, all, host_rows, steps_ahead);
    if (variant == 0) {
      EXPECT_EQ(steps_ahead, 0);
    } else if (by_host == 0) {
      EXPECT_GT(steps_ahead, 10);
    }
    ASSERT_EQ(found.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      SCOPED_TRACE(all[i].name);
      EXPECT_EQ(found[i].tokens, expected[i].tokens);
      runner::expect_same_logprobs(found[i].logprobs, expected[i].logprobs);
      runner::expect_same_logprobs(found[i].prompt_logprobs, expected[i].prompt_logprobs);
    }
    EXPECT_EQ(host_rows, by_host);
  }
}

TEST_F(SamplingOnCard, GivesWhatTheHostGivesWithoutItsSeeingTheLogits) {
  expect_the_cpus(requests());
}

// None of them holds up the next step: constraints and penalties, which follow the tokens before them, only their own
// draws.
TEST_F(SamplingOnCard, AlsoAheadOfTheTokens) {
  std::vector<Request> all = requests();
  std::erase_if(all, [](const Request& request) { return request.by_host; });
  expect_the_cpus(all);
}

}  // namespace
}  // namespace quire
