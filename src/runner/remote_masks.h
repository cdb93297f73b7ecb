// Constraints of answers where they are not: a worker asks the engine's process, by messages, for the masks of an
// answer's tokens.
//
// Masks are asked for where the last token is known first, which is the worker: a plan may be made before its tokens
// are there (num_scheduler_steps, async scheduling), so that no plan can bring them along.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runner/plan_codec.h"
#include "types/constraint_table.h"

namespace quire::runner {

// The engine's end: answers a worker's questions. Keeps the state of each answer, so that a question costs its new
// tokens alone. Thread-safe; one answer's questions come one after the other.
class MaskServer {
 public:
  explicit MaskServer(std::shared_ptr<const ConstraintSource> constraints) : constraints_(std::move(constraints)) {}

  // A message for a message (plan_codec.h). Errors: those of decode_question().
  Result<std::string> answer(std::string_view question);
  size_t num_answers() const;

 private:
  struct Answer {
    ConstraintId constraint = 0;
    std::vector<TokenId> tokens;
    std::unique_ptr<TokenMasks::State> state;
  };
  MaskAnswer answer(const MaskQuestion& question);
  Answer take(const MaskQuestion& question);

  const std::shared_ptr<const ConstraintSource> constraints_;
  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Answer> answers_;  // guarded by mutex_
};

// The worker's end. ask: carries a message to the engine's end and brings its answer; may be called by several threads.
using AskForMasks = std::function<Result<std::string>(std::string_view)>;
std::shared_ptr<const ConstraintSource> make_remote_constraints(AskForMasks ask);

}  // namespace quire::runner
