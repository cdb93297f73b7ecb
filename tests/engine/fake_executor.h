// An executor without a model: the next token is a function of the tokens before it, so that the right answer of every
// request is known whatever it ran beside. Steps can be held back, to look at the engine while one is in flight.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runner/executor.h"

namespace quire::engine {

class FakeExecutor final : public runner::Executor {
 public:
  static constexpr int64_t kVocabSize = 1000;
  static constexpr TokenId kEos = 2;

  // step_tokens: what the configuration asks for; 0: it does not say.
  explicit FakeExecutor(int64_t num_blocks = 64, int64_t max_model_len = 512, int64_t step_tokens = 0) {
    model_.vocab_size = kVocabSize;
    model_.max_position = max_model_len;
    model_.eos_ids = {kEos};
    memory_.block_size = 16;
    memory_.num_blocks = num_blocks;
    memory_.max_model_len = max_model_len;
    memory_.max_num_batched_tokens = step_tokens > 0 ? step_tokens : 2048;
  }

  // Never kEos nor the error token, so that answers end by length.
  static TokenId next_token(const std::vector<TokenId>& tokens) {
    uint64_t hash = 1469598103934665603u;
    for (TokenId token : tokens) hash = (hash ^ static_cast<uint64_t>(token)) * 1099511628211u;
    return static_cast<TokenId>(10 + hash % 900);
  }

  // A prompt that holds this token fails with an error of its own; this one ends the worker.
  static constexpr TokenId kFaultToken = 998;
  static constexpr TokenId kFatalToken = 999;
  // A prompt that ends with it gets an end of sequence at once.
  static constexpr TokenId kEosAfter = 997;

  const ModelConfig& model() const override { return model_; }
  const MemoryPlan& memory() const override { return memory_; }
  const std::string& description() const override { return description_; }

  void submit(StepPlan plan) override { submitted_.push_back(std::move(plan)); }
  Result<runner::ExecutedStep> collect() override {
    const StepPlan plan = std::move(submitted_.front());
    submitted_.pop_front();
    QUIRE_ASSIGN_OR_RETURN(StepResult result, execute(plan));
    return runner::ExecutedStep{.result = std::move(result), .timings = {}};
  }

  Result<StepResult> execute(const StepPlan& plan) {
    {
      std::unique_lock lock(mutex_);
      ++num_steps_;
      reached_.notify_all();
      released_.wait(lock, [&] { return !held_; });
    }
    for (SequenceId id : plan.retired) tokens_.erase(id);
    for (const NewSequence& added : plan.added) {
      tokens_[added.id] = added.prompt;
      num_prompt_[added.id] = static_cast<int32_t>(added.prompt.size());
    }
    StepResult result;
    result.step = plan.step;
    for (const ScheduledSequence& scheduled : plan.scheduled) {
      std::vector<TokenId>& tokens = tokens_.at(scheduled.id);
      if (scheduled.num_computed_tokens < num_prompt_.at(scheduled.id))
        num_prompt_computed_ += scheduled.num_new_tokens;
      SequenceResult one{.id = scheduled.id};
      if (contains(tokens, kFatalToken)) return internal_error("the worker is gone");
      if (contains(tokens, kFaultToken)) one.error = internal_error("not a number");
      if (scheduled.samples && one.error.ok()) {
        one.tokens.push_back(tokens.back() == kEosAfter ? kEos : next_token(tokens));
        tokens.push_back(one.tokens.back());
      }
      result.sequences.push_back(std::move(one));
    }
    return result;
  }

  void hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    released_.notify_all();
  }
  // Until a step beyond the `count`-th has begun.
  void wait_for_step(int64_t count) {
    std::unique_lock lock(mutex_);
    reached_.wait(lock, [&] { return num_steps_ > count; });
  }
  int64_t num_prompt_tokens_computed() const { return num_prompt_computed_; }
  int64_t num_steps() {
    const std::lock_guard lock(mutex_);
    return num_steps_;
  }

 private:
  static bool contains(const std::vector<TokenId>& tokens, TokenId wanted) {
    return std::find(tokens.begin(), tokens.end(), wanted) != tokens.end();
  }

  ModelConfig model_;
  MemoryPlan memory_;
  std::string description_ = "fake";
  std::deque<StepPlan> submitted_;
  std::unordered_map<SequenceId, std::vector<TokenId>> tokens_;
  std::mutex mutex_;
  std::condition_variable released_;
  std::condition_variable reached_;
  bool held_ = false;
  int64_t num_steps_ = 0;
  std::unordered_map<SequenceId, int32_t> num_prompt_;
  std::atomic<int64_t> num_prompt_computed_{0};
};

// What the fake answers to a prompt with `count` tokens.
inline std::vector<TokenId> expected_answer(std::vector<TokenId> prompt, int count) {
  std::vector<TokenId> answer;
  for (int i = 0; i < count; ++i) {
    answer.push_back(FakeExecutor::next_token(prompt));
    prompt.push_back(answer.back());
  }
  return answer;
}

}  // namespace quire::engine
