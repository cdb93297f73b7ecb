// The made-up card's memory: one piece of addresses that nothing can touch unless a launch or a copy is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace quire::cuda_on_host {

// One launch or copy at a time, from whatever thread.
std::mutex& card_mutex();

class DeviceMemory {
 public:
  static DeviceMemory& instance();

  void* allocate(size_t bytes);  // nullptr: no room
  bool release(void* memory);    // false: not the beginning of a piece
  static size_t bytes() { return bytes_; }
  size_t free_bytes() const { return bytes_ - used_; }

  bool holds(const void* at) const {
    const auto address = reinterpret_cast<uintptr_t>(at);
    return address >= reinterpret_cast<uintptr_t>(base_) && address < reinterpret_cast<uintptr_t>(base_) + bytes_;
  }
  // [at, at + bytes) lies within one piece.
  bool holds_piece(const void* at, size_t bytes) const;

  void set_protected(bool protect);

  // Of a card that does nothing: so much memory, which nobody has written to. REQUIRES: there is no instance yet.
  static void begin_idle(size_t bytes) {
    bytes_ = bytes;
    idle_ = true;
  }
  static bool idle() { return idle_; }

  // While one lives the host can reach the memory. REQUIRES: card_mutex() is held.
  class Open {
   public:
    Open() { instance().reach(true); }
    ~Open() { instance().reach(false); }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;
  };

 private:
  DeviceMemory();
  void reach(bool on);
  void allow(bool on);

  static inline size_t bytes_ = size_t{4} << 30;
  static inline bool idle_ = false;

  uint8_t* base_ = nullptr;
  size_t begun_ = 0;  // bytes from base_ that have ever been given out
  size_t used_ = 0;
  bool protect_ = true;
  bool reached_ = false;
  std::map<uint8_t*, size_t> pieces_;  // bytes asked for
};

}  // namespace quire::cuda_on_host
