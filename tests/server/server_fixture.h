// A whole server over a real engine whose model is a fake: it counts through the alphabet, so that every answer is
// known.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "runner/executor.h"
#include "server/server.h"
#include "tests/server/http_client.h"
#include "tests/slowdown.h"
#include "tests/suites/chosen_executor.h"

namespace quire::server {

// One token a byte, spelled as GPT-2's byte-level alphabet spells it.
inline Vocabulary byte_vocabulary() {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    const int code = printable ? byte : next++;
    std::string spelling;
    if (code < 128) {
      spelling.push_back(static_cast<char>(code));
    } else {
      spelling.push_back(static_cast<char>(0xC0 | (code >> 6)));
      spelling.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
    vocabulary.tokens.push_back(spelling);
    vocabulary.token_types.push_back(VocabularyTokenType::kNormal);
  }
  vocabulary.tokens.emplace_back("<|end|>");
  vocabulary.token_types.push_back(VocabularyTokenType::kControl);
  vocabulary.eos_id = 256;
  return vocabulary;
}

inline constexpr TokenId kEnd = 256;
inline constexpr int64_t kContext = 256;  // tokens

// After i tokens comes the letter number i: a prompt of 3 is answered "defgh...". A prompt that ends with '!' is
// answered with the end of sequence; one with '#' in it fails.
inline TokenId next_letter(size_t num_tokens) {
  return static_cast<TokenId>('a' + num_tokens % 26);
}
inline std::string letters(size_t num_prompt_tokens, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out.push_back(static_cast<char>(next_letter(num_prompt_tokens + i)));
  return out;
}

inline TextSource alphabet_text() {
  TextSource text;
  text.vocabulary = byte_vocabulary();
  text.chat_template =
      "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}>{% endif %}";
  return text;
}

class AlphabetExecutor final : public runner::Executor {
 public:
  AlphabetExecutor() {
    model_.vocab_size = 257;
    model_.max_position = kContext;
    model_.eos_ids = {kEnd};
    memory_.block_size = 16;
    memory_.num_blocks = 4096;
    memory_.max_model_len = kContext;
    memory_.max_num_batched_tokens = 2048;
  }

  const ModelConfig& model() const override { return model_; }
  const MemoryPlan& memory() const override { return memory_; }
  const std::string& description() const override { return description_; }

  void submit(StepPlan plan) override { submitted_.push_back(std::move(plan)); }
  Result<runner::ExecutedStep> collect() override {
    const StepPlan plan = std::move(submitted_.front());
    submitted_.pop_front();
    return runner::ExecutedStep{.result = execute(plan), .timings = {}};
  }

  std::atomic<int> step_microseconds{0};
  std::atomic<bool> blocked{false};  // steps wait until it is not

 private:
  StepResult execute(const StepPlan& plan) {
    std::this_thread::sleep_for(std::chrono::microseconds(step_microseconds.load()));
    blocked.wait(true);
    std::unordered_map<SequenceId, std::vector<TokenId>> moved;
    for (const BeamMove& move : plan.moves) {
      moved[move.id] = sequences_.at(move.source).prompt;
      moved[move.id].push_back(move.token);
    }
    for (auto& [id, tokens] : moved) sequences_.at(id).prompt = std::move(tokens);
    for (SequenceId id : plan.retired) sequences_.erase(id);
    for (const NewSequence& added : plan.added) {
      NewSequence& sequence = sequences_[added.id] = added;
      sequence.prompt.insert(sequence.prompt.end(), added.output.begin(), added.output.end());
    }
    StepResult result;
    result.step = plan.step;
    for (const ScheduledSequence& run : plan.scheduled) result.sequences.push_back(advance(run));
    return result;
  }

  static PositionLogprobs logprobs(TokenId chosen, int count) {
    PositionLogprobs out{{chosen, -0.5f, 1}, {}};
    for (int i = 0; i < count; ++i) out.top.push_back({(chosen + i) % 256, -0.5f - static_cast<float>(i), i + 1});
    return out;
  }

  SequenceResult advance(const ScheduledSequence& run) {
    NewSequence& sequence = sequences_.at(run.id);
    std::vector<TokenId>& tokens = sequence.prompt;  // and what was sampled
    SequenceResult out{.id = run.id};
    if (sequence.params->prompt_logprobs) {
      for (int32_t i = run.num_computed_tokens; i < run.num_computed_tokens + run.num_new_tokens; ++i) {
        if (static_cast<size_t>(i) + 1 < tokens.size()) {
          out.prompt_logprobs.push_back(logprobs(tokens[i + 1], *sequence.params->prompt_logprobs));
        }
      }
    }
    if (std::find(tokens.begin(), tokens.end(), '#') != tokens.end()) {
      out.error = internal_error("a fault at 0x7ffd00000000 in /secret/path");
    } else if (run.num_candidates > 0) {
      // The letter that is due, then the others of the alphabet, each half as likely as the one before it.
      const TokenId due = next_letter(tokens.size());
      for (int i = 0; i < run.num_candidates; ++i) {
        out.candidates.push_back({'a' + (due - 'a' + i) % 26, -0.5f - 0.7f * static_cast<float>(i), i + 1});
      }
    } else if (run.samples) {
      const TokenId token = tokens.back() == '!' ? kEnd : next_letter(tokens.size());
      out.tokens.push_back(token);
      if (sequence.params->logprobs) out.logprobs.push_back(logprobs(token, *sequence.params->logprobs));
      tokens.push_back(token);
    }
    return out;
  }

  ModelConfig model_;
  MemoryPlan memory_;
  std::string description_ = "alphabet";
  std::deque<StepPlan> submitted_;
  std::unordered_map<SequenceId, NewSequence> sequences_;
};

// Whether it becomes true within ten seconds.
template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 5000 * kSlowdown; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

class ServerTest : public testing::Test {
 protected:
  void start(ServerConfig config = {}, EngineConfig engine_config = {}) {
    server_.reset();  // of an earlier start: its threads use the engine that goes next
    config.host = "127.0.0.1";
    config.port = 0;
    if (config.served_model_names.empty()) config.served_model_names = {"alphabet", "abc"};
    if (config.root_model.empty()) config.root_model = "alphabet.gguf";
    engine_config.served_model_name = "alphabet";
    auto executor = std::make_unique<AlphabetExecutor>();
    executor_ = executor.get();
    auto engine = engine::Engine::create(engine_config, alphabet_text(), suites::chosen(std::move(executor)));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
    auto server = Server::start(config, *engine_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }

  uint16_t port() const { return server_->port(); }
  ClientResponse chat(std::string_view body) { return post(port(), "/v1/chat/completions", body); }
  ClientResponse complete(std::string_view body) { return post(port(), "/v1/completions", body); }

  // The engine learns of a cancel a moment later; give it that moment.
  void expect_idle() {
    for (int i = 0; i < 2500 * kSlowdown; ++i) {
      const auto stats = engine_->stats();
      if (stats.blocks_used == 0 && stats.num_running == 0 && stats.num_waiting == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    ADD_FAILURE() << "the engine still works: " << engine_->stats().num_running << " running, "
                  << engine_->stats().num_waiting << " waiting, " << engine_->stats().blocks_used << " blocks";
  }

  AlphabetExecutor* executor_ = nullptr;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Server> server_;
};

inline std::string text_of(const boost::json::value& value) {
  return value.is_string() ? std::string(std::string_view(value.get_string())) : boost::json::serialize(value);
}

}  // namespace quire::server
