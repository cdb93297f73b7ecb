#include "comm/message_ring.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace quire::comm {
namespace {

Status nobody_there() {
  return unavailable("the other process is gone");
}

}  // namespace

MessageRing::MessageRing(void* memory, int64_t capacity, Patience patience)
    : header_(*static_cast<RingHeader*>(memory)),
      data_(static_cast<uint8_t*>(memory) + sizeof(RingHeader)),
      capacity_(static_cast<uint64_t>(capacity)),
      patience_(patience) {
  QUIRE_CHECK(std::has_single_bit(capacity_));
}

Status MessageRing::write(std::string_view message, FunctionRef<bool()> may_wait) {
  if (message.size() > kLongestMessage) {
    return invalid_argument("a message of {} bytes: expected at most {}", message.size(), kLongestMessage);
  }
  const auto length = static_cast<uint32_t>(message.size());
  char prefix[sizeof(length)];
  std::memcpy(prefix, &length, sizeof(length));
  // In one part where it is short: each is a reader woken.
  constexpr size_t kShort = 1 << 16;
  if (message.size() <= kShort) {
    std::string framed(prefix, sizeof(prefix));
    framed.append(message);
    return put(framed.data(), framed.size(), may_wait);
  }
  QUIRE_RETURN_IF_ERROR(put(prefix, sizeof(prefix), may_wait));
  return put(message.data(), message.size(), may_wait);
}

Result<std::string> MessageRing::read(FunctionRef<bool()> may_wait) {
  uint32_t length = 0;
  char prefix[sizeof(length)];
  QUIRE_RETURN_IF_ERROR(get(prefix, sizeof(prefix), may_wait));
  std::memcpy(&length, prefix, sizeof(length));
  if (length > kLongestMessage) {
    return data_loss("a message of {} bytes is announced: expected at most {}", length, kLongestMessage);
  }
  // It grows as it comes: an announced length alone takes no memory.
  std::string message;
  while (message.size() < length) {
    const size_t have = message.size();
    message.resize(have + std::min<size_t>(length - have, capacity_));
    QUIRE_RETURN_IF_ERROR(get(message.data() + have, message.size() - have, may_wait));
  }
  return message;
}

bool MessageRing::has_message() const {
  return header_.head.load(std::memory_order_acquire) != header_.tail.load(std::memory_order_relaxed);
}

Status MessageRing::put(const char* data, size_t count, FunctionRef<bool()> may_wait) {
  uint64_t head = header_.head.load(std::memory_order_relaxed);
  while (count > 0) {
    const auto has_room = [&] { return header_.tail.load(std::memory_order_acquire) + capacity_ != head; };
    if (!wait_for(header_.read, patience_, has_room, may_wait)) return nobody_there();
    const uint64_t used = head - header_.tail.load(std::memory_order_acquire);
    if (used > capacity_) return data_loss("the ring's reader is at a place that was not written");
    const uint64_t at = head & (capacity_ - 1);
    const size_t part = std::min({count, static_cast<size_t>(capacity_ - used), static_cast<size_t>(capacity_ - at)});
    std::memcpy(data_ + at, data, part);
    data += part;
    count -= part;
    head += part;
    header_.head.store(head, std::memory_order_release);
    header_.written.ring();
  }
  return {};
}

Status MessageRing::get(char* data, size_t count, FunctionRef<bool()> may_wait) {
  uint64_t tail = header_.tail.load(std::memory_order_relaxed);
  while (count > 0) {
    const auto has_bytes = [&] { return header_.head.load(std::memory_order_acquire) != tail; };
    if (!wait_for(header_.written, patience_, has_bytes, may_wait)) return nobody_there();
    const uint64_t available = header_.head.load(std::memory_order_acquire) - tail;
    if (available > capacity_) return data_loss("the ring's writer is at a place that has not been read");
    const uint64_t at = tail & (capacity_ - 1);
    const size_t part = std::min({count, static_cast<size_t>(available), static_cast<size_t>(capacity_ - at)});
    std::memcpy(data, data_ + at, part);
    data += part;
    count -= part;
    tail += part;
    header_.tail.store(tail, std::memory_order_release);
    header_.read.ring();
  }
  return {};
}

}  // namespace quire::comm
