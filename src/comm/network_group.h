// The ranks of one model that are joined by messages alone (transport.h): what they say to each other in words, and the
// common end of them.
//
// Waiting never takes a core: it asks for `spin`, then sleeps, first for a moment and then for up to 2 ms. It ends with
// an error when the group has ended. Anybody may end it: rank 0 tells all others, and is told by them.
//
// Any thread may call anything but that messages of one rank and tag are read by one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "comm/transport.h"

namespace quire::comm {

// Tags of messages. From kFirstOfNumbers on they are communicators'.
enum class Tag : int {
  kOrder = 1,
  kResult,
  kQuestion,
  kAnswer,
  kBeat,
  kEnd,
  kAdapterOrder,
  kAdapterReport,
  kFirstOfNumbers = 16
};

class NetworkGroup {
 public:
  static constexpr int64_t kLongestMessage = Transport::kMostBytes;
  using Microseconds = std::chrono::microseconds;

  explicit NetworkGroup(std::unique_ptr<Transport> transport);
  // Ends the group where nobody has.
  ~NetworkGroup();

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }

  // A message, also to oneself. Does not wait until it is read. Errors: invalid_argument for one that is too long;
  // unavailable where the group has ended.
  Status write(int to, Tag tag, std::string message);
  // Waits for one. Errors: unavailable where the group has ended.
  Result<std::string> read(int from, Tag tag, Microseconds spin = Microseconds(0));
  // Whether read() would not wait.
  bool has_message(int from, Tag tag);

  // One of several messages of numbers between two ranks, which both know the length of.
  struct Transfer {
    int peer = 0;
    void* receives = nullptr;  // either this
    const void* sends = nullptr;
    int64_t bytes = 0;
    Transport::Request request = nullptr;  // carry_out()'s own, and `is_done`
    bool is_done = false;
  };
  // Returns when all are done. Errors: unavailable; then what was to be received means nothing.
  Status carry_out(std::span<Transfer> transfers, int tag, Microseconds spin);

  // All waiting ends, here and in every other rank, with this reason; the first one counts. kLost: a rank may be gone,
  // so that nobody waits for it when the process ends.
  enum class How : char { kInOrder = 'o', kLost = 'l' };
  void end(std::string_view reason, How how = How::kInOrder);
  // unavailable: why it was ended.
  Status status() const;
  // Whether it was ended because a rank is gone.
  bool is_lost() const;
  bool goes_on() const { return !ended_.load(std::memory_order_acquire); }
  // Takes in that others have ended it. Who waits does so by itself; rank 0, which nobody else tells, from time to
  // time.
  void look_for_ends();

 private:
  struct Outgoing {
    std::string message;
    Transport::Request request = nullptr;
  };
  // The transport is one thread's at a time. A thread that asks again and again lets others go first.
  class Turn;

  bool try_all(std::span<Transfer> transfers, Status& trouble);
  void give_up(std::span<Transfer> transfers);
  void reap();  // REQUIRES: it is this thread's turn
  // What is wrong with a message is often that another rank has ended: then its reason is the better one, and may still
  // be on its way.
  void end_by(const Status& trouble);
  void send_end(int to, std::string_view text);
  void take_end(int from);
  void flush(std::chrono::milliseconds most);
  Result<std::string> read_own(Tag tag);
  Result<std::optional<std::string>> take_message(int from, Tag tag, Microseconds spin);

  const std::unique_ptr<Transport> transport_;
  std::mutex turn_;
  std::atomic<int> wanting_{0};   // threads that want a turn and will not ask again
  std::list<Outgoing> outgoing_;  // of whose turn it is
  std::atomic<bool> ended_{false};

  mutable std::mutex own_mutex_;
  std::condition_variable own_bell_;
  std::map<Tag, std::deque<std::string>> own_;  // to oneself; guarded by own_mutex_, like all below
  std::string reason_;
  bool lost_ = false;
};

}  // namespace quire::comm
