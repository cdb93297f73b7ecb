// How much memory this process may still take.
#pragma once

#include <cstdint>

namespace quire {

// Bytes: what the kernel calls available, or what the cgroup leaves, whichever is less. 0 when the system does not
// tell.
int64_t available_host_memory();

// Gives what the heap holds and nobody uses back to the system.
void trim_heap();

// Bytes of this process that are resident now. 0 when the system does not tell.
int64_t resident_memory();

// From now on blocks of more than 1 MiB go back to the system when they are freed. glibc would raise that bound with
// each such block, and keep what bodies and answers of megabytes took. For a program's main().
void return_large_blocks();

}  // namespace quire
