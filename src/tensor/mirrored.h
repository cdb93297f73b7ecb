// Numbers that the host knows and kernels read: the ids, positions and block tables of a step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// The same content twice where the device has memory of its own; one piece of memory where it computes in the host's.
// Somebody else's memory, like a TensorView.
template <typename T>
struct Mirrored {
  const T* host = nullptr;
  const T* device = nullptr;

  Mirrored() = default;
  Mirrored(const T* shared) : host(shared), device(shared) {}
  Mirrored(const T* on_host, const T* on_device) : host(on_host), device(on_device) {}

  friend Mirrored operator+(Mirrored all, int64_t count) { return {all.host + count, all.device + count}; }
  // nullptr on both sides.
  bool operator==(std::nullptr_t) const { return host == nullptr && device == nullptr; }
};

}  // namespace quire
