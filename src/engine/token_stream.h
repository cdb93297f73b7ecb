// What a stream and the engine thread share. Private to engine/.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "engine/engine.h"

namespace quire::engine {

// An answer that its consumer has ended.
struct EndedAnswer {
  SequenceId id = 0;
  FinishReason finish = FinishReason::kAbort;
  std::optional<int64_t> num_tokens;  // that it kept, where that is known
};

// Where consumers leave word for the engine thread, and the bell that wakes it. Streams share it, so that one may
// outlive the engine.
struct Inbox {
  std::mutex mutex;
  std::condition_variable bell;
  std::vector<EndedAnswer> ended;  // to cancel; guarded by mutex, like below
  std::condition_variable room;    // rung when less waits or is held than before
  bool workers_failed = false;     // the engine thread is to look at its executor
  int64_t held_bytes = 0;          // RequestCost::heap_bytes of answers that their consumers have not taken yet
};

// An answer's part of Inbox::held_bytes, which is given back with it. REQUIRES: whoever drops the last one does not
// hold the inbox's mutex.
class MemoryCharge {
 public:
  // REQUIRES: inbox->mutex is held.
  MemoryCharge(std::shared_ptr<Inbox> inbox, int64_t bytes) : inbox_(std::move(inbox)), bytes_(bytes) {
    inbox_->held_bytes += bytes_;
  }
  ~MemoryCharge() {
    const std::lock_guard lock(inbox_->mutex);
    inbox_->held_bytes -= bytes_;
    inbox_->room.notify_all();
  }
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;

 private:
  const std::shared_ptr<Inbox> inbox_;
  const int64_t bytes_;
};

struct TokenStream::State {
  State(SequenceId sequence_id, std::shared_ptr<Inbox> engine_inbox)
      : id(sequence_id), inbox(std::move(engine_inbox)) {}

  // Engine thread: merges an event into what waits and tells the consumer.
  void put(TokenEvent event);
  // Consumer: what waits, if anything.
  std::optional<TokenEvent> take_locked();
  // Nothing will come: the request was never queued.
  void close();

  const SequenceId id;
  const std::shared_ptr<Inbox> inbox;

  std::mutex mutex;
  std::condition_variable ready;
  std::optional<TokenEvent> pending;  // guarded by mutex, like all below
  std::function<void()> notify;
  bool finished = false;  // the last event was put
  // The answer's charge, until the last event is taken or nobody is left who could; set before the engine knows of it.
  std::shared_ptr<const void> memory_held;
};

}  // namespace quire::engine
