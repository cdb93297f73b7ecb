// The requests of one consumer, and what they have newly produced: one list for all of them, so that a wait or a
// wake-up serves as many as there is something for.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/output.h"
#include "quire/llm.h"

namespace quire::python {

// An engine and the process whose it is: in a fork its threads are not there, and nothing of it may be touched.
struct OwnedEngine {
  std::unique_ptr<LLM> llm;
  engine::Engine* const engine;  // its own
  const pid_t process = getpid();

  explicit OwnedEngine(std::unique_ptr<LLM> made) : llm(std::move(made)), engine(&llm->engine()) {}
  ~OwnedEngine() {
    if (elsewhere()) (void)llm.release();  // the parent's; joining its threads here would wait forever
  }
  OwnedEngine(const OwnedEngine&) = delete;
  OwnedEngine& operator=(const OwnedEngine&) = delete;
  bool elsewhere() const { return getpid() != process; }
};

struct Params {
  engine::PreparedParams prepared;
  int32_t num_sequences = 1;
};

struct SubmitOptions {
  int32_t priority = 0;
  std::string cache_salt;
  double timeout = 0;   // seconds; 0: the engine's own
  std::string adapter;  // by its name; empty: the model as it is
  bool wait = false;    // for room where the engine's bounds are reached
};

struct Update {
  uint64_t number = 0;
  int32_t index = 0;  // of the answer
  bool last = false;  // of the request
  engine::OutputDelta delta;
};

class Channel {
 public:
  // whole: answers come when all of a request are done, and not before.
  Channel(std::shared_ptr<OwnedEngine> engine, bool whole);
  ~Channel();  // cancels what is under way
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Errors: those of engine::Engine::submit().
  Result<uint64_t> submit(std::vector<TokenId> prompt, const Params& params, const SubmitOptions& options);
  // Nothing of it is given out any more. False: it is not under way.
  bool cancel(uint64_t number);
  // Waits so long for something to come; below zero: does not wait.
  std::vector<Update> take(std::chrono::milliseconds wait);
  size_t size() const;         // requests under way
  int64_t num_tokens() const;  // of answers, so far
  // A descriptor that can be read while take() would give something.
  Result<int> descriptor();

  const std::shared_ptr<OwnedEngine>& owned() const { return engine_; }

 private:
  struct Ready;
  struct Running {
    std::vector<std::unique_ptr<engine::Completion>> answers;  // [n]
    std::vector<engine::OutputDelta> whole;                    // [n], where they are gathered
  };
  void take_of(uint64_t number, Running& running, std::vector<Update>& updates);

  const std::shared_ptr<OwnedEngine> engine_;
  const bool whole_;
  const std::shared_ptr<Ready> ready_;
  mutable std::mutex mutex_;                       // of all below
  std::unordered_map<uint64_t, Running> running_;  // by number
  uint64_t next_number_ = 0;
  int64_t num_tokens_ = 0;
};

}  // namespace quire::python
