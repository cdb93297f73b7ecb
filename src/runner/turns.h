// Several models on the same cores: each has an executor and threads of its own, and their steps take turns, for two at
// once would each wait at every barrier for threads that the other one keeps from their cores.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "runner/executor.h"

namespace quire::runner {

// First come, first served. Thread-safe.
class Turns {
 public:
  class Turn {
   public:
    explicit Turn(Turns& turns);  // waits for it
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;     // to be given out
  uint64_t serving_ = 0;  // whose turn it is
};

// The same executor, but that each of its steps waits for a turn.
std::unique_ptr<Executor> make_turn_taking_executor(std::unique_ptr<Executor> executor, std::shared_ptr<Turns> turns);

}  // namespace quire::runner
