#include "tests/suites/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

thread_local quire::Allocations counted;
std::atomic<int64_t> live = 0;

void* counted_memory(std::size_t bytes) noexcept {
  ++counted.count;
  counted.bytes += static_cast<int64_t>(bytes);
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  live.fetch_add(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}

void free_counted(void* memory) noexcept {
  live.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = counted_memory(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](std::size_t bytes) {
  return operator new(bytes);
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_memory(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted_memory(bytes);
}
void operator delete(void* memory) noexcept {
  free_counted(memory);
}
void operator delete[](void* memory) noexcept {
  free_counted(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  free_counted(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  free_counted(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  free_counted(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  free_counted(memory);
}

namespace quire {

Allocations allocations() {
  return counted;
}

int64_t live_bytes() {
  return live.load(std::memory_order_relaxed);
}

}  // namespace quire
