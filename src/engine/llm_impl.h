// The inside of the C++ API. Private to engine/.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/output.h"
#include "quire/llm.h"

namespace quire {

// Asynchronous requests that have something to hand out, and the bell of the thread that does it. Generations share it,
// so that one may outlive the LLM.
struct Dispatcher {
  std::mutex mutex;
  std::condition_variable bell;
  std::deque<std::weak_ptr<Generation::State>> ready;
  bool stopping = false;
};

// Which of several requests under way have something new. Streams tell it, perhaps when whoever listens is gone.
struct ReadyList {
  std::mutex mutex;
  std::condition_variable bell;
  std::vector<uint64_t> numbers;  // guarded by mutex; may hold one several times

  void add(uint64_t number) {
    const std::lock_guard lock(mutex);
    numbers.push_back(number);
    bell.notify_one();
  }
  // Each once, rising. With `wait`, not before there is one.
  std::vector<uint64_t> take(bool wait = false);
};

// A request of add_request().
struct LoopRequest {
  std::string id;
  std::vector<std::unique_ptr<engine::Completion>> answers;  // [n]
  RequestUsage usage;
  std::optional<int32_t> fewest_cached;  // of the answers heard of
};

struct LLM::Impl {
  std::unique_ptr<engine::Engine> engine;  // the last to go: all below reads its streams with its tokenizer

  // generate_async()
  std::shared_ptr<Dispatcher> dispatcher = std::make_shared<Dispatcher>();
  std::thread thread;
  void dispatch_loop();

  // add_request(), step()
  std::mutex loop_mutex;
  std::map<uint64_t, LoopRequest>
      loop_requests;  // by number, in the order of arrival; guarded by loop_mutex, like below
  std::unordered_map<std::string, uint64_t> loop_numbers;  // by id
  uint64_t next_number = 0;
  std::shared_ptr<ReadyList> ready = std::make_shared<ReadyList>();

  // The name by which the engine knows the adapter; empty: none. Loads what is not known.
  Result<std::string> adapter_of(const std::optional<LoraRequest>& lora) const;

  Status add(std::string request_id, std::vector<TokenId> prompt, const SamplingParams& params, RequestOptions options);
  Status refusal_locked(const std::string& request_id) const;
  std::vector<StepOutput> take_outputs();
  void forget_all();
};

// The prompt's tokens. Errors: invalid_argument where a text meets an engine without a tokenizer.
Result<std::vector<TokenId>> prompt_ids(const engine::Engine& engine, const Prompt& prompt);
// The same of a conversation, through the model's chat template. Errors: those of engine::render_chat().
Result<std::vector<TokenId>> prompt_ids(const engine::Engine& engine, const std::vector<ChatMessage>& messages);

CompletionOutput as_output(engine::OutputDelta delta);

}  // namespace quire
