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

// Where consumers leave word for the engine thread, and the bell that wakes it. Streams share it, so that one may
// outlive the engine.
struct Inbox {
  std::mutex mutex;
  std::condition_variable bell;
  std::vector<SequenceId> ids;  // to cancel; guarded by mutex
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
};

}  // namespace quire::engine
