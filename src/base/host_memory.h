// How much memory this process may still take.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// Bytes: what the kernel calls available, or what the cgroup leaves, whichever is less. 0 when the system does not
// tell.
int64_t available_host_memory();

// Gives what the heap holds and nobody uses back to the system.
void trim_heap();

// Bytes of this process that are resident now. 0 when the system does not tell.
int64_t resident_memory();

// The border on which a large page begins.
inline constexpr size_t kLargePage = size_t{2} << 20;

// Memory of the system's own, zeros, from a large page's border on where one may lie in it. nullptr: there is none.
void* map_memory(size_t bytes);
void unmap_memory(void* memory, size_t bytes);

// Asks for large pages from the one on in which this memory begins, as far as whole ones fit: what is read straight
// through, again and again, then waits for few translations of addresses. Advice alone, to be given before the memory
// is first written, and for what lies before it in that page, too; where the system has no such pages nothing changes.
void prefer_large_pages(void* memory, size_t bytes);

// From now on blocks of more than 1 MiB go back to the system when they are freed. glibc would raise that bound with
// each such block, and keep what bodies and answers of megabytes took. For a program's main().
void return_large_blocks();

}  // namespace quire
