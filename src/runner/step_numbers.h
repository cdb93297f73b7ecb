// The integers of a step where the device reads them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ops/backend.h"
#include "tensor/mirrored.h"

namespace quire::runner {

// Copies them to the device together, at once. Where the device computes in the host's memory nothing is copied.
class StepNumbers {
 public:
  explicit StepNumbers(ops::Backend& backend) : backend_(backend) {}

  // Makes room for what add() will be given and forgets what was there. Memory that does not suffice is taken anew,
  // which waits for the device.
  void begin(size_t bytes);
  static constexpr size_t room(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
  // The host's side must stay until upload(), and as long as somebody reads it. REQUIRES: room for them, rounded.
  template <typename T>
  Mirrored<T> add(std::span<const T> numbers) {
    if (in_host_memory_) return numbers.data();
    return {numbers.data(), reinterpret_cast<const T*>(add_bytes(numbers.data(), numbers.size_bytes()))};
  }
  template <typename T>
  Mirrored<T> add(const std::vector<T>& numbers) {
    return add(std::span<const T>(numbers));
  }
  // Returns how many bytes went up.
  int64_t upload();
  // At which of their places on the device they lie, counted from 1: at another only after begin() has made more room.
  uint64_t place() const { return num_places_; }

 private:
  static constexpr size_t kAlign = 64;

  const uint8_t* add_bytes(const void* numbers, size_t bytes);

  ops::Backend& backend_;
  const bool in_host_memory_ = backend_.computes_in_host_memory();
  Buffer memory_;                // the device's
  std::vector<uint8_t> staged_;  // as they will lie there
  size_t used_ = 0;
  uint64_t num_places_ = 0;
};

}  // namespace quire::runner
