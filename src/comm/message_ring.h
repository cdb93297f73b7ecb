// Messages from one process (or thread) to another through shared memory: a ring of bytes with one writer and one
// reader. A message of any length passes; what is longer than the ring goes through it in parts, while it is read.
//
// Nothing that the other side writes there is trusted: a length over the limit, or a position that cannot be, is an
// error and not a read beyond the ring.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/function_ref.h"
#include "base/status.h"
#include "comm/bell.h"

namespace quire::comm {

struct RingHeader {
  Bell written;                               // rung with every part that was written
  Bell read;                                  // the same of those that were read
  alignas(64) std::atomic<uint64_t> head{0};  // bytes written since the beginning
  alignas(64) std::atomic<uint64_t> tail{0};  // bytes read
};

class MessageRing {
 public:
  static constexpr uint32_t kLongestMessage = 1u << 30;
  static int64_t bytes(int64_t capacity) { return static_cast<int64_t>(sizeof(RingHeader)) + capacity; }

  // A view of memory of bytes(capacity), all zeros before anybody uses it, at a cache line. REQUIRES: capacity is a
  // power of two.
  MessageRing(void* memory, int64_t capacity, Patience patience = {});

  // may_wait: asked while there is nothing to read, or no room; false ends the waiting. Errors: unavailable where it
  // did; data_loss for what no writer of ours has written.
  Status write(std::string_view message, FunctionRef<bool()> may_wait);
  Result<std::string> read(FunctionRef<bool()> may_wait);
  // Whether read() would find the beginning of one.
  bool has_message() const;

 private:
  Status put(const char* data, size_t count, FunctionRef<bool()> may_wait);
  Status get(char* data, size_t count, FunctionRef<bool()> may_wait);

  RingHeader& header_;
  uint8_t* const data_;
  const uint64_t capacity_;
  const Patience patience_;
};

}  // namespace quire::comm
