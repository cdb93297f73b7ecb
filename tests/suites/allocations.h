// Counts what operator new gives in a program that links quire_test_allocations: bounds of memory are tested by what
// was asked for, not by what was measured.
#pragma once

#include <cstdint>

namespace quire {

struct Allocations {
  int64_t count = 0;
  int64_t bytes = 0;
};

// Of the calling thread, since it began; what was freed counts too.
Allocations allocations();

// What all threads hold now, as the allocator rounds it.
int64_t live_bytes();

// Of `work`, on this thread.
template <typename Work>
Allocations allocations_of(const Work& work) {
  const Allocations before = allocations();
  work();
  const Allocations after = allocations();
  return {after.count - before.count, after.bytes - before.bytes};
}

}  // namespace quire
